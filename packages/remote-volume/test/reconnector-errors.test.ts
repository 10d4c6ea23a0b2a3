// What becomes of a server that has answered and cannot take part: the class of the error alone decides whether it stays out
// for good. So each class is here, and each is one class in the process (swap-server/test/exit-status.test.ts).
import { EXIT, ExitError, InvalidInputError } from '@rdmakit/operator-kit'
import { ConfigurationError, SwapServerError, SwapServerSession } from '@rdmakit/swap-server'
import { ConnectionRejectedError, UsageError, VerbsError } from '@rdmakit/verbs'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { FencedError } from '../src/servers/fenced-error.js'
import { ServerReconnector } from '../src/servers/server-reconnector.js'
import { VolumeServer } from '../src/servers/volume-server.js'
import { MIB } from './helpers/swap-servers.js'

const URI = 'iwarp://192.0.2.1:7471'

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
})
afterEach(() => {
  vi.useRealTimers()
  vi.restoreAllMocks()
})

/** A server that has failed answers, and `failure` is why it cannot join, each time. */
async function calledFor(milliseconds: number, failure: Error) {
  const session = { close: async () => {} } as unknown as SwapServerSession
  vi.spyOn(SwapServerSession, 'open').mockResolvedValue(session)
  const [join, fenced, progress] = [vi.fn(async () => Promise.reject(failure)), vi.fn(), vi.fn()]
  const reconnector = new ServerReconnector({
    session: {},
    volume: { slabSize: MIB, slabCount: 8 },
    reconnect: 10_000,
    join,
    rejoin: async () => {},
    shared: () => false,
    fenced,
    lose: () => {},
    progress,
  })
  reconnector.start()
  reconnector.call(VolumeServer.gone(0, [URI], 'it failed', undefined))
  await vi.advanceTimersByTimeAsync(milliseconds)
  await reconnector.close()
  return { times: join.mock.calls.length, said: progress.mock.calls.flat(), fenced: fenced.mock.calls.length }
}

it('wrong usage keeps it out for good, and is said', async () => {
  const { times, said } = await calledFor(9_000, new UsageError('it has another slab size'))
  expect([times, said]).toEqual([1, [`${URI}: it has another slab size; it is not called again`]])
})

it.each<[string, Error]>([
  ['ConfigurationError', new ConfigurationError('why')],
  ['InvalidInputError', new InvalidInputError('why')],
  ['ExitError', new ExitError('why', EXIT.usage)],
  ['SwapServerError', new SwapServerError('EACCES', 'why')],
  ['Error', new Error('why')],
])('%s is what somebody may mend: it is called again, which is said once', async (_, failure) => {
  const { times, said } = await calledFor(9_000, failure)
  expect([times, said]).toEqual([4, [`${URI}: why; it is called again`]])
})

it.each<[string, Error]>([
  ['VerbsError', new VerbsError('ETIMEDOUT', 'rdma_connect', URI, 'why')],
  ['ConnectionRejectedError', new ConnectionRejectedError(URI, new Uint8Array())],
])('%s is as expected: it is called again, and nothing is said', async (_, failure) => {
  const { times, said } = await calledFor(9_000, failure)
  expect([times, said]).toEqual([4, []])
})

it('a volume that another process has is called for no more', async () => {
  const { times, said, fenced } = await calledFor(
    9_000,
    new FencedError(URI, 'another process has the volume'),
  )
  expect([times, said, fenced]).toEqual([1, [], 1])
})
