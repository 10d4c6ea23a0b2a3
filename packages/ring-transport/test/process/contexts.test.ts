import { AsyncLocalStorage } from 'node:async_hooks'
import type { Context } from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import { describe, expect, it, onTestFinished } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import {
  Poller,
  type PollerMode,
  RingClient,
  RingConnection,
  RingServer,
  type RingServerOptions,
} from '../../src/index.js'
import { pair } from '../helpers/pair.js'
import { HANG_MS } from '../helpers/processes.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

const MODES: readonly PollerMode[] = ['adaptive', 'event', 'poll', 'caller', 'guarded']
const BYTES = new Uint8Array(8)
/** above the threshold: it is offered and read, not sent */
const LARGE = new Uint8Array(2 ** 17)
/** Messages larger than a quarter of the ring are offered. */
const SMALL_RING = { capacity: 2 ** 16, rendezvousThreshold: 2 ** 14 }

const storage = new AsyncLocalStorage<string>()

/** Which callbacks ran in which context. */
class Seen {
  readonly all = new Map<string, Set<string | undefined>>()
  note(callback: string): void {
    this.all.set(callback, (this.all.get(callback) ?? new Set()).add(storage.getStore()))
  }
  /** the callbacks that were called, and those that ran elsewhere than in `context` */
  elsewhere(context: string): string[] {
    return [...this.all]
      .filter(([, contexts]) => contexts.size !== 1 || !contexts.has(context))
      .map(([callback, contexts]) => `${callback}: ${[...contexts]}`)
  }
}

/** One poller of each device, which lives in the context of its first user. */
function pollers(mode: PollerMode): (context: Context) => Poller {
  const made = new Map<Context, Poller>()
  onTestFinished(() => {
    for (const poller of made.values()) poller.close()
  })
  return (context) => {
    const poller = made.get(context) ?? new Poller(context, { mode })
    made.set(context, poller)
    return poller
  }
}

/** Notes the context of each callback of a connection; the callbacks are given from `where`. */
function observe(seen: Seen, end: string, connection: RingConnection, where: string): void {
  storage.run(where, () => {
    connection.messages.subscribe({
      next: () => seen.note(`${end} messages`),
      complete: () => seen.note(`${end} messages end`),
    })
    connection.offers.subscribe((offer) => {
      seen.note(`${end} offers`)
      offer
        .accept()
        .then((message) => message.release())
        .catch(() => {})
    })
    connection.states.subscribe(({ state }) => seen.note(`${end} state ${state}`))
    connection.handle(() => {
      seen.note(`${end} handle`)
      return BYTES
    })
  })
}

/** A message, a request and an offer from each end to the other. */
async function converse(a: RingConnection, b: RingConnection): Promise<void> {
  const timeout = HANG_MS
  for (const one of [a, b]) {
    one.send(BYTES)
    await one.request(BYTES, { timeout })
    await one.transmit(LARGE, { timeout })
  }
}

const CALLBACKS = [
  'messages',
  'messages end',
  'offers',
  'handle',
  'state open',
  'state draining',
  'state closed',
]

describe.each(PROVIDERS)('callbacks on %s', (provider) => {
  it.each(MODES)('run in the context of their own connection, mode %s', async (mode) => {
    const poller = pollers(mode)
    const options = { poller, ...SMALL_RING }
    const seen = new Seen()
    const connect = (name: string) =>
      storage.run(name, () => pair(listenUri(provider), options, { ...options, timeout: HANG_MS }))
    const first = await connect('first')
    const second = await connect('second')
    observe(seen, 'a', second.a, 'elsewhere')
    observe(seen, 'b', second.b, 'elsewhere')
    observe(new Seen(), 'other', first.b, 'first')
    // Frames of both come in one go, to one dispatcher.
    await storage.run('first', () =>
      Promise.all([converse(second.a, second.b), first.a.request(BYTES, { timeout: HANG_MS })]),
    )
    await storage.run('closer', () => second.a.close())
    await second[Symbol.asyncDispose]()
    await first[Symbol.asyncDispose]()
    expect([...seen.all.keys()].sort()).toEqual(CALLBACKS.flatMap((one) => [`a ${one}`, `b ${one}`]).sort())
    expect(seen.elsewhere('second')).toEqual([])
  })

  it('of a server and of a client run where these were made', async () => {
    const seen = new Seen()
    const timeout = HANG_MS
    const arrived = deferred<RingConnection>()
    const poller = pollers('adaptive')
    const options: RingServerOptions = {
      timeout,
      poller,
      admit: () => {
        seen.note('admit')
        return true
      },
      onConnection: (connection) => {
        seen.note('onConnection')
        connection.states.subscribe(({ state }) => seen.note(`state ${state}`))
        arrived.resolve(connection)
      },
    }
    const other = await storage.run('first', () => pair(listenUri(provider), { poller }, { poller }))
    const server = await storage.run('own', () => RingServer.listen(listenUri(provider), options))
    const client = storage.run('own', () => new RingClient(server.uri, { timeout, poller }))
    storage.run('elsewhere', () => {
      client.states.subscribe(({ state }) => seen.note(`client ${state}`))
      client.messages.subscribe(() => seen.note('client message'))
    })
    const accepted = await arrived.promise
    await client.opened({ timeout })
    accepted.send(BYTES)
    await eventually(() => seen.all.has('client message'))
    await storage.run('closer', () => client.close())
    await server.close()
    await other[Symbol.asyncDispose]()
    expect([...seen.all.keys()]).toEqual(
      expect.arrayContaining(['admit', 'onConnection', 'state open', 'client open', 'client closed']),
    )
    expect(seen.elsewhere('own')).toEqual([])
  })

  it('of requests that have waited for a handler run where the server was made', async () => {
    const seen = new Seen()
    const timeout = HANG_MS
    const asked = deferred<void>()
    const onConnection = async (connection: RingConnection) => {
      await asked.promise
      await eventually(() => connection.statistics().requestsRunning === 2)
      storage.run('setter', () =>
        connection.handle(() => {
          seen.note('handler')
          return BYTES
        }),
      )
    }
    const server = await storage.run('own', () => RingServer.listen(listenUri(provider), { onConnection }))
    const client = await storage.run('client', () => RingConnection.connect(server.uri, { timeout }))
    const answers = [client.request(BYTES, { timeout }), client.request(BYTES, { timeout })]
    asked.resolve()
    expect(await Promise.all(answers)).toEqual([BYTES, BYTES])
    await client.close()
    await server.close()
    expect([...seen.all.keys()]).toEqual(['handler'])
    expect(seen.elsewhere('own')).toEqual([])
  })

  it('of one call run in the context of the call', async () => {
    const seen = new Seen()
    const poller = pollers('adaptive')
    const options = { poller, ...SMALL_RING }
    const { a, b, ...rest } = await storage.run('connection', () =>
      pair(listenUri(provider), options, options),
    )
    const taken = deferred<void>()
    b.offers.subscribe((offer) =>
      storage.run('call', () =>
        offer
          .accept({ onProgress: () => seen.note('accept') })
          .then((message) => message.release())
          .then(taken.resolve, taken.reject),
      ),
    )
    await storage.run('call', () => a.transmit(LARGE, { onProgress: () => seen.note('transmit') }))
    await taken.promise
    a.send(BYTES)
    await eventually(() => storage.run('call', () => b.drain(() => seen.note('drain'))) > 0)
    await rest[Symbol.asyncDispose]()
    expect([...seen.all.keys()].sort()).toEqual(['accept', 'drain', 'transmit'])
    expect(seen.elsewhere('call')).toEqual([])
  })
})
