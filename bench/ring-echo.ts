// The other process of the ring benchmark: echoes over the ring and over TCP (Node net).
// Its argument is the waiting mode of its polling thread.
import { createServer } from 'node:net'
import { Poller, type PollerMode, RingServer } from '@rdmakit/ring-transport'
import { openDevice } from '@rdmakit/verbs'

const mode = process.argv[2] as PollerMode

const ring = await RingServer.listen('iwarp://127.0.0.1:0', {
  poller: new Poller(openDevice('iwarp0', 'iwarp'), { mode }),
  onConnection: (connection) => {
    connection.messages.subscribe((message) => {
      connection.send(message.data)
      connection.flush()
    })
  },
})
const tcp = createServer({ noDelay: true }, (socket) => {
  socket.on('data', (bytes) => socket.write(bytes))
  socket.on('error', () => socket.destroy())
})
tcp.listen(0, '127.0.0.1', () => {
  const address = tcp.address()
  if (typeof address === 'object' && address !== null) console.log(`ready ${ring.uris[0]} ${address.port}`)
})
process.once('SIGTERM', () => process.exit(0))
