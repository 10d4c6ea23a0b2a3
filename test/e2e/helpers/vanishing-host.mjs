// A server for vanished-host.test.ts: memory that peers may read and write, and a ring that answers nothing. Prints where.
import { RingServer } from '@rdmakit/ring-transport'
import { Listener } from '@rdmakit/verbs'

const ids = []
const listener = await Listener.listen('iwarp://0.0.0.0:0', async ({ id }) => {
  ids.push(id)
  const domain = id.context.allocateProtectionDomain()
  const region = await domain.allocateMemoryRegion(2 ** 20, ['remote-read', 'remote-write'])
  const queuePair = id.createQueuePair(domain, {
    sendQueue: id.context.createCompletionQueue({ entries: 64 }),
  })
  queuePair.postReceive({ data: [{ region, length: 4096 }] })
  const told = Buffer.alloc(12)
  told.writeBigUInt64LE(region.address)
  told.writeUInt32LE(region.remoteKey, 8)
  await id.accept({ privateData: told })
})
const ring = await RingServer.listen('iwarp://0.0.0.0:0', {
  // What is transmitted is to be read.
  rendezvousThreshold: 0,
  onConnection(connection) {
    connection.handle(() => new Promise(() => {}))
    connection.transmit(new Uint8Array(2 ** 20)).catch(() => {})
  },
})
const port = (uri) => Number(uri.split(':').at(-1))
console.log(JSON.stringify({ verbs: port(listener.uri), ring: port(ring.uris?.[0] ?? ring.uri) }))
