// The memory of a connection with little traffic, and of the maximum number of connections. Takes four seconds.
import { readFileSync } from 'node:fs'
import { listDevices, openDevice } from '@rdmakit/verbs'
import { describe, expect, it, onTestFinished } from 'vitest'
import { Poller, RingConnection, RingServer } from '../../src/index.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const timeout = 60_000
/** More than twice those whose completions the queue of a poller has room for at first. */
const MANY = 300

/** bytes of this process's private resident memory */
function resident(): number {
  const [, kibibytes] = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? []
  return 1024 * Number(kibibytes)
}

async function listen(uri: string, maxConnections = MANY): Promise<RingServer> {
  const server = await RingServer.listen(uri, {
    maxConnections,
    timeout,
    onConnection: (connection) => connection.handle(({ data }) => data),
  })
  onTestFinished(() => server.close({ drain: false }))
  return server
}

async function connect(server: RingServer, options = {}): Promise<RingConnection> {
  const connection = await RingConnection.connect(server.uri, { timeout, ...options })
  onTestFinished(() => connection.close({ drain: false }))
  return connection
}

it('take memory as they use it', async () => {
  const server = await listen(listenUri('iwarp'))
  await connect(server)
  const before = resident()
  for (let i = 1; i < 100; i++) await connect(server)
  // Both ends: two rings and two staging regions of 5.3 MiB each.
  expect((resident() - before) / 99).toBeLessThan(2 ** 19)
})

describe.each(PROVIDERS)('over %s', (provider) => {
  it('more come than the completion queue of their poller had room for, and all are served', async () => {
    const server = await listen(listenUri(provider))
    const small = { capacity: 4096 }
    const all: RingConnection[] = []
    for (let i = 0; i < MANY; i++) all.push(await connect(server, small))
    const answers = all.map((one, i) => one.request(new Uint8Array([i & 0xff]), { timeout }))
    expect((await Promise.all(answers)).map(([byte]) => byte)).toEqual(all.map((_, i) => i & 0xff))
  })

  it('no more come than the completion queue that was asked for has room for', async () => {
    const [device] = listDevices().filter((one) => one.provider === provider)
    const context = openDevice(device?.name as string, provider)
    const poller = new Poller(context, { completionQueueEntries: 600 })
    onTestFinished(() => poller.close())
    const server = await listen(listenUri(provider))
    for (let i = 0; i < 2; i++) await connect(server, { poller })
    await expect(connect(server, { poller })).rejects.toMatchObject({
      code: 'ENOSPC',
      message: /558 of 600 entries are in use; raise completionQueueEntries/,
    })
  })
})
