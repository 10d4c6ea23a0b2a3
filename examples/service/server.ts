// Serves the Greeter of greeter.proto. node examples/dist/service/server.js [uri]
import { RingServer, serve } from '@rdmakit/ring-transport'
import { rdmakit } from '#greeter'

const { Greeter } = rdmakit.examples.greeter.v1
let greetings = 0

const server = await RingServer.listen(process.argv[2] ?? 'iwarp://127.0.0.1:7473', {
  onConnection: (connection) => {
    serve(connection, Greeter, {
      sayHello({ name }) {
        // The caller gets this as a RemoteError with the code and the message.
        if (!name) throw Object.assign(new Error('whom to greet?'), { code: 'EINVAL' })
        greetings++
        return { text: `Hello, ${name}!` }
      },
      count: () => ({ greetings }),
    })
  },
})
console.log(`listening ${server.uris[0]}`)
process.once('SIGTERM', () => void server.close())
process.once('SIGINT', () => void server.close())
