// Waiting: where an error says that it has waited, and many that wait for one signal.
import { UsageError } from '@rdmakit/verbs'
import { expect, it, onTestFinished } from 'vitest'
import { RingClient, RingServer } from '../../src/index.js'
import { pairOfTest } from '../helpers/pair.js'
import { HANG_MS } from '../helpers/processes.js'
import { LARGE, READ_FROM } from '../helpers/transfers.js'
import { listenUri } from '../helpers/uris.js'

function silent(): RingClient {
  const client = new RingClient(listenUri('shm'), { reconnect: { min: 60_000, max: 60_000 } })
  onTestFinished(() => client.close({ drain: false }))
  return client
}

it.each<[string, (of: Awaited<ReturnType<typeof pairOfTest>>) => Promise<unknown>]>([
  [
    'request',
    async function whoAsked({ a }) {
      return await a.request(new Uint8Array(), { timeout: 5 })
    },
  ],
  [
    'request that fails',
    async function whoAsked({ b }) {
      return await b.request(new Uint8Array(), { timeout: HANG_MS })
    },
  ],
  [
    'request of a client',
    async function whoAsked({ server }) {
      await using client = new RingClient(server.uri)
      await client.opened({ timeout: HANG_MS })
      for (const connection of server.connections) connection.handle(() => new Promise(() => {}))
      try {
        return await client.request(new Uint8Array(), { timeout: 20 })
      } finally {
        await client.close({ drain: false })
      }
    },
  ],
  [
    'transmit',
    async function whoAsked({ a, b }) {
      b.offers.subscribe(() => {})
      return await a.transmit(new Uint8Array(LARGE), { timeout: 5 })
    },
  ],
  [
    'opened',
    async function whoAsked() {
      return await silent().opened({ timeout: 5 })
    },
  ],
])('the error of a %s has the caller in its stack', async (_, ask) => {
  const ends = await pairOfTest(listenUri('shm'), {}, READ_FROM)
  ends.b.handle(() => new Promise(() => {}))
  const failure: unknown = await ask(ends).catch((reason) => reason)
  if (!(failure instanceof Error)) throw new Error(`no error: ${failure}`)
  expect(failure.stack).toMatch(/whoAsked/)
  expect(failure.stack).toContain(failure.message)
})

it('fifty of each that wait for one signal make Node warn of nothing, and all end with it', async () => {
  const warnings: Error[] = []
  const warned = (warning: Error) => warnings.push(warning)
  process.on('warning', warned)
  onTestFinished(() => void process.off('warning', warned))
  const { a, b } = await pairOfTest(listenUri('shm'), { capacity: 4096 }, { capacity: 4096, ...READ_FROM })
  b.handle(() => new Promise(() => {}))
  const over = new AbortController()
  const { signal } = over
  const many = <T>(make: () => T) => Array.from({ length: 50 }, make)
  const waiting: Promise<unknown>[] = many(() => a.request(new Uint8Array(), { signal, timeout: HANG_MS }))
  b.offers.subscribe(() => {})
  waiting.push(...many(() => a.transmit(new Uint8Array(LARGE), { signal, timeout: HANG_MS })))
  // While something is claimed nothing else is taken.
  while (a.claim(1) === undefined) await a.writable()
  expect(a.send(new Uint8Array(1))).toBe(false)
  waiting.push(...many(() => a.writable({ signal })))
  const client = silent()
  waiting.push(
    ...many(() => client.opened({ signal, timeout: HANG_MS })),
    ...many(() => client.writable({ signal })),
  )
  waiting.push(...many(() => client.request(new Uint8Array(), { signal, timeout: HANG_MS })))
  const settled = Promise.allSettled(waiting)
  const clients = many(
    () => new RingClient(listenUri('shm'), { signal, reconnect: { min: 60_000, max: 60_000 } }),
  )
  const servers = await Promise.all(
    many(() => RingServer.listen(listenUri('shm'), { signal, onConnection: () => {} })),
  )
  // A warning is reported in a later tick.
  await new Promise((later) => setImmediate(later))
  expect(warnings).toEqual([])
  const reason = new UsageError('enough')
  over.abort(reason)
  for (const one of await settled) expect(one).toEqual({ status: 'rejected', reason })
  expect(await Promise.all(clients.map(({ closed }) => closed))).toEqual(many(() => reason))
  await Promise.all(servers.map(({ closed }) => closed))
  expect(warnings).toEqual([])
})

it('a signal that goes on is let go of by each that has waited for it', async () => {
  const { a, b } = await pairOfTest(listenUri('shm'))
  b.handle(({ data }) => data)
  const over = new AbortController()
  let listeners = 0
  const { signal } = over
  const [add, remove] = [signal.addEventListener.bind(signal), signal.removeEventListener.bind(signal)]
  signal.addEventListener = (...all: Parameters<typeof add>) => {
    listeners++
    add(...all)
  }
  signal.removeEventListener = (...all: Parameters<typeof remove>) => {
    listeners--
    remove(...all)
  }
  await Promise.all(Array.from({ length: 20 }, () => a.request(new Uint8Array(1), { signal })))
  await a.transmit(new Uint8Array(LARGE), { signal })
  expect(listeners).toBe(0)
})

it('requests are over before their connection is, with a signal or without', async () => {
  const { a, b } = await pairOfTest(listenUri('shm'), {})
  b.handle(() => new Promise(() => {}))
  const over: string[] = []
  const { signal } = new AbortController()
  const all = [
    a.request(new Uint8Array()).catch(() => over.push('request')),
    a.request(new Uint8Array(), { signal }).catch(() => over.push('request with a signal')),
    a.closed.then(() => over.push('connection')),
  ]
  await expect.poll(() => b.statistics().requestsRunning).toBe(2)
  await b.close({ drain: false })
  await Promise.all(all)
  expect(over).toEqual(['request', 'request with a signal', 'connection'])
})
