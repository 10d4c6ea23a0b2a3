// Calls the Greeter of greeter.proto. node examples/dist/service/client.js [uri] [name…]
import { client, RemoteError, RingConnection } from '@rdmakit/ring-transport'
import { rdmakit } from '#greeter'

const [uri = 'iwarp://127.0.0.1:7473', ...names] = process.argv.slice(2)
const connection = await RingConnection.connect(uri)
const greeter = client(connection, rdmakit.examples.greeter.v1.Greeter, { timeout: 10_000 })

async function greet(name: string): Promise<void> {
  try {
    const { text } = await greeter.sayHello({ name })
    console.log(text)
    const { greetings } = await greeter.count({})
    console.log(`greeted so far: ${greetings}`)
  } catch (failure) {
    if (!(failure instanceof RemoteError)) throw failure
    console.log(`the server refused: ${failure.code} ${failure.message}`)
  }
}

try {
  for (const name of names.length > 0 ? names : ['ring']) await greet(name)
} finally {
  await connection.close()
}
