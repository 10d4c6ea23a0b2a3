// Sends each message back. node examples/dist/ping-pong/server.js [uri]
import { RingServer } from '@rdmakit/ring-transport'
import { options, poll } from './polling.js'

const server = await RingServer.listen(process.argv[2] ?? 'iwarp://127.0.0.1:7473', {
  ...options,
  onConnection: (connection) => {
    void poll(connection, ({ data, immediate }) => {
      // The client has one message on its way: there is always room.
      connection.send(data, immediate)
      connection.flush()
    })
  },
})
console.log(`listening ${server.uri}`)
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => void server.close())
