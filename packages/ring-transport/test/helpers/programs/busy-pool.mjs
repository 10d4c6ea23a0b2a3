// The only thread of libuv's pool waits for a writer of a FIFO: busy-pool.mjs FIFO. Prints the results of the
// calls that needed it.
import { constants, openSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { RingClient, RingConnection, RingServer } from '@rdmakit/ring-transport'

const fifo = process.argv[2]
const failure = (work) =>
  work.then(
    () => 'it did',
    ({ code, message }) => code ?? message,
  )

const server = await RingServer.listen('iwarp://127.0.0.1:0', { onConnection: () => {} })
const named = server.uri.replace('127.0.0.1', 'localhost')
const blocked = open(fifo, 'r')
const abort = new AbortController()
const aborted = failure(RingConnection.connect(server.uri, { signal: abort.signal }))
const client = new RingClient(named)
// It is at its lookup.
await new Promise((resolve) => client.states.subscribe(({ state }) => state === 'connecting' && resolve()))
abort.abort(new Error('enough'))
const result = {
  name: await failure(RingConnection.connect(named, { timeout: 20 })),
  memory: await failure(RingConnection.connect(server.uri, { timeout: 20 })),
  aborted: await aborted,
  closed: (await client.close()) ?? 'closed',
}
openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK)
await (await blocked).close()
// Late results were given back: the next connection has all that it needs.
const connection = await RingConnection.connect(server.uri)
await connection.close()
await server.close()
process.stdout.write(JSON.stringify(result))
