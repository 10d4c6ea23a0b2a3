// How long a server is called that has the only copy of something: with a clock of its own.
import { SwapServerError, SwapServerSession } from '@rdmakit/swap-server'
import { VerbsError } from '@rdmakit/verbs'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { ServerReconnector, WrongAddressError } from '../src/servers/server-reconnector.js'
import { VolumeServer } from '../src/servers/volume-server.js'
import { MIB } from './helpers/swap-servers.js'

const refused = () => new VerbsError('ECONNREFUSED', 'rdma_connect', 'the server', 'nobody is there')
const silent = () => new VerbsError('ETIMEDOUT', 'rdma_connect', 'the server', 'nobody is there')
const ended = () => new SwapServerError('ENOENT', 'there is no such session')
const forbidden = () => new SwapServerError('EACCES', 'the tenant, its key or the proof is wrong')
const unproven = () => new SwapServerError('EBADMSG', 'there is no such session; but …')
const taken = () => new SwapServerError('ESTALE', 'another process has taken the volume over')
const back = {
  slabSize: MIB,
  list: async () => [],
  leave: async () => {},
  close: async () => {},
} as unknown as SwapServerSession
/** Whatever address is called first. */
const answering = async ([uri = '']: readonly string[]) => ({ ...back, uri }) as unknown as SwapServerSession

let recall: ServerReconnector
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
})
afterEach(async () => {
  shared = false
  waitedFor = true
  address = ELSEWHERE
  others = []
  await recall.close()
  vi.useRealTimers()
  vi.restoreAllMocks()
})

const HERE = 'shm:///run/rdmakit/server.sock'
const ELSEWHERE = 'iwarp://192.0.2.1:7471'
/** of the server that is called */
let address = ELSEWHERE
let others: readonly string[] = []

/** Another incarnation has the session of the server that is called, which is not waited for then. */
let shared = false
/** It alone has something. */
let waitedFor = true

/** Calls a server, whose answers come one after the other, the last of them again and again. */
function call(...answers: (() => Error)[]) {
  const resume = vi.spyOn(SwapServerSession, 'resume').mockImplementation(answering)
  for (const answer of answers) resume.mockRejectedValueOnce(answer())
  const rejoin = vi.fn(async () => {})
  const lose = vi.fn()
  const fenced = vi.fn()
  const join = vi.fn(async () => {})
  const progress = vi.fn()
  recall = new ServerReconnector({
    session: {},
    volume: { slabSize: MIB, slabCount: 8 },
    reconnect: 10_000,
    join,
    rejoin,
    shared: () => shared,
    fenced,
    lose,
    progress,
  })
  const identity = { epoch: '0123456789abcdef', session: 7, token: new Uint8Array(16) }
  const server = VolumeServer.gone(0, [address, ...others], 'it failed', identity)
  server.away = waitedFor && !shared
  recall.start()
  recall.call(server)
  return { resume, join, rejoin, lose, fenced, progress, reason: () => lose.mock.calls[0]?.[1] as string }
}

const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms)

it('a server is back that refuses connections only while it is started', async () => {
  address = HERE
  const { rejoin, lose } = call(refused, refused)
  await pass(900)
  expect(lose).not.toHaveBeenCalled()
  await pass(200)
  expect(rejoin).toHaveBeenCalledOnce()
  expect(lose).not.toHaveBeenCalled()
})

it('a server of this host is given up where nobody listens for a second', async () => {
  address = HERE
  const { rejoin, lose } = call(...Array.from({ length: 30 }, () => refused))
  await pass(1_100)
  expect(lose).toHaveBeenCalledOnce()
  expect(rejoin).not.toHaveBeenCalled()
})

// A tunnel or a firewall in front of it.
it('a server of another host is called as long as it may be, whoever refuses', async () => {
  const { rejoin, lose } = call(...Array.from({ length: 12 }, () => refused))
  await pass(7_000)
  expect(rejoin).toHaveBeenCalledOnce()
  expect(lose).not.toHaveBeenCalled()
})

it('a server whose way here is another one just now is called as long as it may be', async () => {
  const { rejoin, lose } = call()
  for (let time = 0; time < 3; time++) rejoin.mockRejectedValueOnce(new WrongAddressError('another device'))
  await pass(5_000)
  expect(rejoin).toHaveBeenCalledTimes(4)
  expect(lose).not.toHaveBeenCalled()
})

it('a call that is not answered ends after 5 s, and the next one follows', async () => {
  const { resume, rejoin, lose } = call(refused)
  const signals: (AbortSignal | undefined)[] = []
  resume.mockImplementationOnce(
    (_uris, _identity, options) =>
      new Promise((_resolve, reject) => {
        signals.push(options?.signal)
        options?.signal?.addEventListener('abort', () => reject(options.signal?.reason))
      }),
  )
  await pass(500)
  expect(signals.map((signal) => signal?.aborted)).toEqual([false])
  await pass(5_000)
  expect(signals.map((signal) => signal?.aborted)).toEqual([true])
  await pass(500)
  expect(rejoin).toHaveBeenCalledOnce()
  expect(lose).not.toHaveBeenCalled()
})

it.each([
  ['waited for', true],
  ['given up', false],
])('a server that is %s and answers over another device is called at its other address', async (_, away) => {
  waitedFor = away
  const here = 'rdma://192.0.2.1:7471'
  others = [here]
  vi.spyOn(SwapServerSession, 'open').mockImplementation(answering)
  const { join, rejoin, lose, progress } = call()
  const [taken, other] = away ? [rejoin, join] : [join, rejoin]
  taken.mockRejectedValueOnce(new WrongAddressError('it is reached over another device'))
  await pass(5_000)
  for (const spy of [lose, other]) expect(spy).not.toHaveBeenCalled()
  const sessions = taken.mock.calls as unknown as [unknown, SwapServerSession][]
  expect(sessions.map(([, { uri }]) => uri)).toEqual([ELSEWHERE, here])
  expect(progress.mock.calls.flat()).toEqual(
    away ? [] : [expect.stringMatching(/over another device; it is called again$/)],
  )
})

it('a server whose first address swallows all is called at its other one', async () => {
  others = ['iwarp://198.51.100.1:7471']
  const { resume, rejoin, lose } = call(silent, silent)
  resume.mockImplementation(async (uris, _identity, options) => {
    if (uris[0] !== ELSEWHERE) return answering(uris)
    return new Promise((_resolve, reject) => {
      options?.signal?.addEventListener('abort', () => reject(options.signal?.reason))
    })
  })
  // Both were called, and the next call is used up by the first.
  await pass(500 + 5_000 + 500)
  expect(lose).not.toHaveBeenCalled()
  const sessions = rejoin.mock.calls as unknown as [unknown, SwapServerSession][]
  expect(sessions.map(([, { uri }]) => uri)).toEqual(others)
})

it('a second of which it did something else does not count', async () => {
  address = HERE
  const { rejoin, lose } = call(refused, silent, refused, silent, refused)
  await pass(3_000)
  expect(rejoin).toHaveBeenCalledOnce()
  expect(lose).not.toHaveBeenCalled()
})

it('a server that does not answer is called as long as it may be, and once more', async () => {
  const { rejoin, lose, reason } = call(...Array.from({ length: 30 }, () => silent))
  await pass(9_900)
  expect(lose).not.toHaveBeenCalled()
  await pass(1_000)
  expect(reason()).toMatch(/^it did not come back within 10 s/)
  expect(rejoin).not.toHaveBeenCalled()
})

it('a server that does not know the session is given up at once', async () => {
  const { lose, reason } = call(ended)
  await pass(1)
  expect(lose).toHaveBeenCalledOnce()
  expect(reason()).toBe('there is no such session')
})

it('a server that refuses the key is said once, and called as long as it may be', async () => {
  const { lose, rejoin, progress } = call(...Array.from({ length: 5 }, () => forbidden))
  await pass(3_000)
  expect(progress).toHaveBeenCalledExactlyOnceWith(
    'iwarp://192.0.2.1:7471: the tenant, its key or the proof is wrong; it is called again',
  )
  expect(rejoin).toHaveBeenCalledOnce()
  expect(lose).not.toHaveBeenCalled()
})

it.each([
  ['waited for', true],
  ['given up', false],
])('a server that is %s is not called any more when another process has its session', async (_, away) => {
  const open = vi.spyOn(SwapServerSession, 'open').mockResolvedValue(back)
  waitedFor = away
  const { resume, rejoin, lose, fenced } = call(silent, taken)
  await pass(60_000)
  expect(fenced).toHaveBeenCalledExactlyOnceWith(expect.objectContaining({ name: 'FencedError', status: 79 }))
  expect(resume).toHaveBeenCalledTimes(2)
  for (const other of [open, rejoin, lose]) expect(other).not.toHaveBeenCalled()
})

it('a session that another incarnation has is not ended', async () => {
  shared = true
  const { resume } = call()
  await pass(60_000)
  expect(resume).not.toHaveBeenCalled()
})

it('a server before proofs, which is empty, joins again', async () => {
  const open = vi.spyOn(SwapServerSession, 'open').mockResolvedValue(back)
  waitedFor = false
  const { join } = call(unproven)
  await pass(3_000)
  expect(open).toHaveBeenCalledOnce()
  expect(join).toHaveBeenCalledOnce()
})

it('one that nobody has any more is ended', async () => {
  shared = true
  const { resume } = call(refused)
  shared = false
  await pass(5_000)
  expect(resume).toHaveBeenCalled()
})
