// Asks once. node examples/dist/echo/client.js [uri] [text]
import { RingConnection } from '@rdmakit/ring-transport'

const connection = await RingConnection.connect(process.argv[2] ?? 'iwarp://127.0.0.1:7472')
const answer = await connection.request(Buffer.from(process.argv[3] ?? 'hello'))
console.log(Buffer.from(answer).toString())
await connection.close()
