import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { expect, it } from 'vitest'
import { RingServer } from '../../src/index.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const DEADLINE_MS = 50_000
const index = new URL('../../dist/index.js', import.meta.url).href

/** Runs a program that knows the address of a server of this process. */
async function run(program: string, uri: string) {
  const script = `import { RingClient, RingConnection, RingServer } from ${JSON.stringify(index)}\nconst [, uri, own] = process.argv\n${program}`
  const own = uri.startsWith('shm:') ? `${uri}.own` : 'iwarp://127.0.0.1:0'
  const child = spawn(process.execPath, ['--input-type=module', '-e', script, uri, own], {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: DEADLINE_MS,
    killSignal: 'SIGKILL',
  })
  const [printed, [code]] = await Promise.all([text(child.stdout), once(child, 'exit')])
  return { code, printed }
}

it.each(PROVIDERS)(
  "a program exits whose connections, client and server are unref'ed: %s",
  async (provider) => {
    await using server = await RingServer.listen(listenUri(provider), {
      onConnection: (connection) => connection.handle((request) => request.copy()),
    })
    const program = `
    const server = await RingServer.listen(own, { onConnection: () => {} })
    const connections = []
    for (const poller of ['adaptive', 'event', 'poll', 'caller', 'guarded'])
      connections.push(await RingConnection.connect(uri, { poller }))
    const client = new RingClient(uri)
    await client.opened()
    for (const one of connections) await one.request(new Uint8Array(1))
    for (const one of [server, client, ...connections]) one.unref()
    console.log(connections.filter((one) => one.isOpen).length)`
    expect(await run(program, server.uri)).toEqual({ code: 0, printed: '5\n' })
  },
)

it("a program exits whose client waits for its next attempt, unref'ed", async () => {
  const program = `
    const client = new RingClient(uri, { reconnect: { min: 3600000 } }).unref()
    client.states.subscribe(({ state }) => state === 'waiting' && console.log(state))`
  const server = await RingServer.listen(listenUri('iwarp'), { onConnection: () => {} })
  const { uri } = server
  await server.close()
  expect(await run(program, uri)).toEqual({ code: 0, printed: 'waiting\n' })
})

it("a program stays for a connection that is ref'ed again", async () => {
  await using server = await RingServer.listen(listenUri('iwarp'), {
    onConnection: (connection) => connection.handle((request) => request.copy()),
  })
  const program = `
    const connection = (await RingConnection.connect(uri)).unref().ref()
    console.log((await connection.request(new Uint8Array(3))).length)
    await connection.close()`
  expect(await run(program, server.uri)).toEqual({ code: 0, printed: '3\n' })
})
