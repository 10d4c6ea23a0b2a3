// Exceptions of a program's own handler of requests.
import { spawnSync } from 'node:child_process'
import { afterEach, expect, it, onTestFinished, vi } from 'vitest'
import { ConnectionId, type ConnectionRequest, Listener, VerbsError } from '../src/index.js'
import { native } from '../src/native.js'

const open: { close(): void }[] = []
afterEach(() => {
  for (const one of open.splice(0)) one.close()
})

/** Connects to a listener whose handler does that. @returns how it ended for who connects, and what `onError` heard */
async function asked(onRequest: (request: ConnectionRequest) => void | Promise<void>) {
  let tell: (failure: unknown) => void = () => {}
  const heard = new Promise((resolve) => {
    tell = resolve
  })
  const listener = await Listener.listen('iwarp://127.0.0.1:0', onRequest, { onError: tell })
  const id = await ConnectionId.resolve(listener.uri)
  open.push(listener, id)
  const domain = id.context.allocateProtectionDomain()
  id.createQueuePair(domain, { sendQueue: id.context.createCompletionQueue({ entries: 16 }) })
  const ended = await id.connect().catch((failure) => failure)
  return { ended, heard }
}

it.each([
  [
    'throws',
    new TypeError('a fault of the program'),
    (failure: Error) => () => {
      throw failure
    },
  ],
  [
    'rejects',
    new VerbsError('ETIMEDOUT', 'rdma_accept', 'x', 'y'),
    (failure: Error) => () => Promise.reject(failure),
  ],
] as const)('what it %s with is heard, and ends that connection', async (_, failure, handler) => {
  const { ended, heard } = await asked(handler(failure))
  expect(ended).toBeInstanceOf(VerbsError)
  expect(await heard).toBe(failure)
})

it('who asked is known also when the request is over, for the log', async () => {
  const peers: string[] = []
  await asked((request) => {
    request.reject()
    peers.push(request.peerUri)
  })
  expect(peers).toEqual([expect.stringMatching(/^iwarp:\/\/127\.0\.0\.1:\d+$/)])
})

it('a request that is over has no id, as its error says', async () => {
  const { heard } = await asked((request) => {
    request.reject()
    request.id
  })
  expect(await heard).toMatchObject({
    name: 'VerbsError',
    code: 'ENODEV',
    object: expect.stringMatching(/^request of iwarp:/),
  })
})

it('an end of a connection whose device is gone says so', async () => {
  const gone = () =>
    vi.spyOn(native, 'idContext').mockImplementationOnce(() => {
      const why = { code: 'ENODEV', verb: 'rdma_resolve_addr', detail: 'no such device' }
      throw Object.assign(new Error('a failure of the addon'), why)
    })
  onTestFinished(() => {
    vi.restoreAllMocks()
  })
  const expected = { name: 'VerbsError', code: 'ENODEV' }
  const { heard } = await asked((request) => {
    gone()
    request.id
  })
  expect(await heard).toMatchObject({ ...expected, object: expect.stringMatching(/^connection from iwarp:/) })
  gone()
  const object = 'connection to iwarp://127.0.0.1:7'
  await expect(ConnectionId.resolve('iwarp://127.0.0.1:7')).rejects.toMatchObject({ ...expected, object })
})

/** A program whose handler throws `thrown`, and that says what becomes of it. */
const program = (thrown: string) => `
  import { ConnectionId, Listener, VerbsError } from '@rdmakit/verbs'
  process.on('uncaughtException', (failure) => console.log('uncaught', failure.message))
  const listener = await Listener.listen('iwarp://127.0.0.1:0', () => { throw ${thrown} })
  const id = await ConnectionId.resolve(listener.uri)
  id.createQueuePair(id.context.allocateProtectionDomain(), { sendQueue: id.context.createCompletionQueue({ entries: 16 }) })
  await id.connect().catch(() => console.log('refused'))
  process.exit(0)`

it('without anybody to hear it a fault of the program is uncaught, and a peer that went away is none', () => {
  const run = (thrown: string) =>
    spawnSync(process.execPath, ['--input-type=module', '--eval', program(thrown)], {
      encoding: 'utf8',
      cwd: import.meta.dirname,
    })
  expect(run(`new TypeError('mine')`).stdout.split('\n').sort()).toEqual(['', 'refused', 'uncaught mine'])
  expect(run(`new VerbsError('ECONNRESET', 'rdma_accept', 'it', 'it went away')`).stdout).toBe('refused\n')
})

it('a request that has come before the listener was closed, and was not handed on yet, is refused', async () => {
  let asked = 0
  const listener = await Listener.listen('iwarp://127.0.0.1:0', () => {
    asked++
  })
  const id = await ConnectionId.resolve(listener.uri)
  open.push(id)
  const domain = id.context.allocateProtectionDomain()
  id.createQueuePair(domain, { sendQueue: id.context.createCompletionQueue({ entries: 16 }) })
  const ended = id.connect().catch((failure) => failure)
  // The request comes while this thread stands still, which nothing could tell it. It may be late: then it is refused
  // for want of a listener.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200)
  listener.close()
  expect(await ended).toMatchObject({ code: 'ECONNREFUSED' })
  expect(asked).toBe(0)
})
