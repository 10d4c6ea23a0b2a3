// A server that says that it has the most memory and refuses each slab, as one whose machine is out of memory, or one that
// lies: it keeps no other server from having what it does not take.
import { SwapServerSession } from '@rdmakit/swap-server'
import { VerbsError } from '@rdmakit/verbs'
import { expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { Client, MIB, WRITE } from '../helpers/fixture.js'
import { openVolume } from '../helpers/volumes.js'

type Served = Awaited<ReturnType<typeof serve>>

/** Its device gives no memory from now on. */
function refuse({ server: { store } }: Served): void {
  store.allocate = () =>
    Promise.reject(new VerbsError('ENOMEM', 'ibv_reg_mr', 'the device', 'there is no memory'))
}

it('first WRITEs of a thin volume get their places at the other server', async () => {
  const [good, refusing] = [await serve(16), await serve(64)]
  refuse(refusing)
  const uris = [good.uri, refusing.uri]
  await using volume = await openVolume(uris, { size: 16 * MIB, thin: true, spares: 0 })
  const client = new Client(volume.engine.attachSocketpair(0))
  for (let slab = 0; slab < 12; slab++)
    expect((await client.request(WRITE, slab * MIB, 4096, Buffer.alloc(4096, 1)))?.error).toBe(0)
  client.close()
})

it('the only server is asked again', async () => {
  const { server, uri } = await serve(4)
  const { store } = server
  const allocate = store.allocate
  const refused = new Promise<void>((resolve) => {
    store.allocate = () => {
      store.allocate = allocate
      resolve()
      return Promise.reject(new VerbsError('ENOMEM', 'ibv_reg_mr', 'the device', 'there is no memory'))
    }
  })
  await using volume = await openVolume([uri], { size: 4 * MIB, thin: true, spares: 0 })
  await refused
  const client = new Client(volume.engine.attachSocketpair(0))
  expect((await client.request(WRITE, 0, 4096, Buffer.alloc(4096, 1)))?.error).toBe(0)
  client.close()
})

it('a volume whose server is lost has its replicas again at the others', async () => {
  const made = [await serve(24), await serve(24), await serve(64)] as const
  const [lost, , refusing] = made
  // While the volume is opened it has no room.
  const hog = await SwapServerSession.open([refusing.uri])
  await hog.allocate(64)
  const rest = await serve(20)
  const uris = [...made, rest].map(({ uri }) => uri)
  await using volume = await openVolume(uris, { size: 8 * MIB, replicas: 2, spares: 0 })
  refuse(refusing)
  await hog.close()
  await eventually(() => volume.servers[2]?.room === 64)
  await lost.server.close()
  await eventually(() => volume.slabs.mapped === 8)
  expect(volume.servers[2]?.slabs).toBe(0)
})
