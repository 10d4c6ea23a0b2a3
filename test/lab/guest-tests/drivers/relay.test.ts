// The proof of a key is good on its own connection, on the kernel's devices too: Soft-RoCE pads what a connect carries.
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { RingConnection, RingServer } from '@rdmakit/ring-transport'
import { SwapServer, SwapServerSession, Tenants } from '@rdmakit/swap-server'
import { expect, onTestFinished, test } from 'vitest'

const MIB = 2 ** 20
const key = { id: '1', secret: randomBytes(32) }
const tenants = [{ name: 'prod', keys: [{ id: key.id, secret: key.secret.toString('hex') }] }]

/** Listens at `uri`, and passes on what clients ask of the server at `upstream`. @returns where it listens */
async function relay(uri: string, upstream: string): Promise<string> {
  const listening = await RingServer.listen(uri, {
    onConnection(client) {
      const server = RingConnection.connect(upstream)
      client.handle(async (request) => (await server).request(request.data))
      void client.closed.then(async () => (await server).close({ drain: false }))
    },
  })
  onTestFinished(() => listening.close({ drain: false }))
  return listening.uri
}

test.each([
  ['Soft-RoCE', 'rdma://10.77.0.1:0'],
  ['kernel iWARP', 'rdma://10.78.0.1:0'],
])('over %s a client with a key gets a session, and a relay does not', async (_, address) => {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-relay-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'tenants.json')
  writeFileSync(file, JSON.stringify({ tenants }), { mode: 0o600 })
  const server = new SwapServer({ memory: 4 * MIB, slabSize: MIB, tenants: Tenants.load(file) })
  onTestFinished(() => server.close())
  const uri = await server.listen(address)
  const session = await SwapServerSession.open([uri], { tenant: 'prod', key })
  onTestFinished(() => session.close())
  expect(await session.allocate(1)).toHaveLength(1)
  const between = await relay(address, uri)
  await expect(SwapServerSession.open([between], { tenant: 'prod', key })).rejects.toMatchObject({
    code: 'EACCES',
    message: 'the tenant, its key or the proof is wrong',
  })
})
