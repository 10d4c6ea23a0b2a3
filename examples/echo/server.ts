// Answers each request with its own bytes. node examples/dist/echo/server.js [uri]
import { RingServer } from '@rdmakit/ring-transport'

const server = await RingServer.listen(process.argv[2] ?? 'iwarp://127.0.0.1:7472', {
  onConnection: (connection) => connection.handle(async (request) => request.data),
})
console.log(`listening ${server.uris[0]}`)
process.once('SIGTERM', () => void server.close())
process.once('SIGINT', () => void server.close())
