// A request over the ring: node ring.mjs URI
import { RingConnection, RingServer } from '@rdmakit/ring-transport'

const server = await RingServer.listen(process.argv[2], {
  onConnection(connection) {
    connection.handle((request) => Buffer.from(`you said ${request.text()}`))
  },
})
const connection = await RingConnection.connect(server.uri)
console.log(Buffer.from(await connection.request(Buffer.from('hello'))).toString())
await server.close()
