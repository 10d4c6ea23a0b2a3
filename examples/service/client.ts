// Calls the Greeter of greeter.proto. node examples/dist/service/client.js [uri] [name]
import { client, RemoteError, RingConnection } from '@rdmakit/ring-transport'
import { rdmakit } from '#greeter'

const connection = await RingConnection.connect(process.argv[2] ?? 'iwarp://127.0.0.1:7473')
const greeter = client(connection, rdmakit.examples.greeter.v1.Greeter, { timeout: 2000 })
try {
  const { text } = await greeter.sayHello({ name: process.argv[3] ?? 'ring' })
  console.log(text)
  const { greetings } = await greeter.count({})
  console.log(`greeted so far: ${greetings}`)
} catch (failure) {
  if (!(failure instanceof RemoteError)) throw failure
  console.log(`the server refused: ${failure.code} ${failure.message}`)
} finally {
  await connection.close()
}
