// A server that answers something else than it was asked, played with bare verbs: its client does not go on with it.
import { type ConnectionRequest, Listener } from '@rdmakit/verbs'
import { expect, it, onTestFinished } from 'vitest'
import { RingConnection } from '../../src/index.js'
import { decodeHandshake, encodeHandshake, type Handshake } from '../../src/setup/handshake.js'
import { Windows } from '../../src/setup/ring-layout.js'

const LOG2_CAPACITY = 12
const SESSION = { id: '00000000000000a1', epoch: 7 }

/** Answers as a server of a ring of 4 KiB would, but for `change`. */
async function impostor(change: Partial<Handshake>): Promise<string> {
  const listener = await Listener.listen('iwarp://127.0.0.1:0', async (request: ConnectionRequest) => {
    const { id, privateData } = request
    const asked = decodeHandshake(privateData, 'test')
    const pd = id.context.allocateProtectionDomain()
    onTestFinished(() => {
      id.close()
      pd.close()
    })
    const region = await pd.allocateMemoryRegion(65_536, ['remote-write'])
    const queue = id.context.createCompletionQueue({ entries: 256 })
    const queuePair = id.createQueuePair(pd, { sendQueue: queue, maxReceive: 128 })
    for (let i = 0; i < 100; i++) queuePair.postReceive({ data: [{ region, length: 8 }] })
    const answer = {
      version: asked.version,
      writeWithImmediate: true,
      windows: new Windows(LOG2_CAPACITY, 1),
      receiveDepth: 8,
      longest: 0,
      remoteKey: region.remoteKey,
      address: region.address,
      session: asked.session,
      applicationData: new Uint8Array(),
      ...change,
    }
    // Its client may be gone by then.
    await id.accept({ privateData: encodeHandshake(answer) }).catch(() => {})
  })
  onTestFinished(() => listener.close())
  return listener.uri
}

it('an answer of the same session is one to go on with', async () => {
  const connection = await RingConnection.connect(await impostor({}), { session: SESSION })
  expect(connection.session).toEqual(SESSION)
  await connection.close({ drain: false })
})

it.each<[string, Handshake['session']]>([
  ['another session', { ...SESSION, id: '00000000000000a2' }],
  ['another epoch', { ...SESSION, epoch: 6 }],
  ['no session', undefined],
])('an answer of %s is refused', async (_, session) => {
  const connecting = RingConnection.connect(await impostor({ session }), { session: SESSION })
  await expect(connecting).rejects.toMatchObject({ code: 'EPROTO', message: /another session/ })
})

it('an answer with a session is refused by who asked for none', async () => {
  const connecting = RingConnection.connect(await impostor({ session: SESSION }))
  await expect(connecting).rejects.toMatchObject({ code: 'EPROTO' })
})

it('a ring that would cost its client more memory than it allows is refused', async () => {
  const uri = await impostor({ windows: new Windows(LOG2_CAPACITY + 1, 1) })
  const connecting = RingConnection.connect(uri, { maxPeerCapacity: 2 ** LOG2_CAPACITY })
  await expect(connecting).rejects.toMatchObject({ code: 'EMSGSIZE', message: /2\^13 bytes/ })
  const allowed = await RingConnection.connect(await impostor({}), { maxPeerCapacity: 2 ** LOG2_CAPACITY })
  await allowed.close({ drain: false })
})
