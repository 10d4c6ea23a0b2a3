// A program that has nothing left to do exits, as Node users expect, whatever it has left open.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { describe, expect, it } from 'vitest'
import { type ConnectionId, Listener } from '../../src/index.js'
import { deferred } from '../../src/internal.js'

const DEADLINE_MS = 50_000

const PREAMBLE = `
import { ConnectionId, Listener } from ${JSON.stringify(new URL('../../dist/index.js', import.meta.url).href)}
const uri = process.argv[1]
const end = (id) => {
  const domain = id.context.allocateProtectionDomain()
  const channel = id.context.createCompletionChannel()
  const sendQueue = id.context.createCompletionQueue({ entries: 16, channel })
  const queuePair = id.createQueuePair(domain, { sendQueue })
  return { domain, channel, queue: sendQueue, queuePair }
}
const connected = async (to = uri) => {
  const id = await ConnectionId.resolve(to)
  const made = end(id)
  await id.connect()
  return { id, ...made }
}
`

/** A program that says when it is ready, and goes on. */
function start(program: string, uri: string): ChildProcess {
  return spawn(process.execPath, ['--input-type=module', '-e', PREAMBLE + program, uri], {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: DEADLINE_MS,
    killSignal: 'SIGKILL',
  })
}

async function outcome(child: ChildProcess): Promise<{ code: number | null; printed: string }> {
  const [printed, [code]] = await Promise.all([
    text(child.stdout as NodeJS.ReadableStream),
    once(child, 'exit'),
  ])
  return { code, printed }
}

/** Runs a program beside a listener of this process that does `onPeer` with each end. */
async function run(program: string, onPeer: (id: ConnectionId) => void = () => {}) {
  const ends: ConnectionId[] = []
  using listener = await Listener.listen('iwarp://127.0.0.1:0', async ({ id }) => {
    const domain = id.context.allocateProtectionDomain()
    const sendQueue = id.context.createCompletionQueue({ entries: 16 })
    id.createQueuePair(domain, { sendQueue })
    ends.push(id)
    await id.accept()
    onPeer(id)
  })
  try {
    return await outcome(start(program, listener.uri))
  } finally {
    for (const id of ends) id.close()
  }
}

describe('a program exits', () => {
  it('that has waited on a completion channel, and waits no more', async () => {
    const program = `
      const { id, queue, queuePair, domain } = await connected()
      const region = await domain.allocateMemoryRegion(4096)
      queuePair.postSend({ opcode: 'send', data: [{ region, length: 8 }] })
      console.log((await queue.wait()).length)
      id.disconnect()
      await id.disconnected`
    expect(await run(program)).toEqual({ code: 0, printed: '1\n' })
  })

  it('whose wait was given up', async () => {
    const program = `
      const { id, queue } = await connected()
      const abort = new AbortController()
      const wait = queue.wait(1, { signal: abort.signal }).catch(() => console.log('given up'))
      abort.abort()
      await wait
      id.disconnect()
      await id.disconnected`
    expect(await run(program)).toEqual({ code: 0, printed: 'given up\n' })
  })

  it('whose connect has failed', async () => {
    const program = `
      const listener = await Listener.listen('iwarp://127.0.0.1:0', () => {})
      const nobody = listener.uri
      listener.close()
      await connected(nobody).catch(({ code }) => console.log(code))`
    expect(await run(program)).toEqual({ code: 0, printed: 'ECONNREFUSED\n' })
  })

  it('whose connection the peer has ended', async () => {
    const program = `
      const { id } = await connected()
      await id.disconnected
      console.log('ended')`
    expect(await run(program, (id) => id.disconnect())).toEqual({ code: 0, printed: 'ended\n' })
  })

  it("whose listener, connection and channel are unref'ed", async () => {
    const program = `
      const listener = await Listener.listen('iwarp://127.0.0.1:0', () => {})
      const { id, channel, queue } = await connected()
      for (const one of [listener, channel, id]) one.unref()
      void queue.wait()
      console.log('left')`
    expect(await run(program)).toEqual({ code: 0, printed: 'left\n' })
  })
})

describe('a program stays', () => {
  it.each([
    ['for a connection', 'const { id } = await connected(); console.log("ready"); await id.disconnected'],
    [
      'for a wait',
      `const { id, queue, queuePair, domain } = await connected()
      queuePair.postReceive({ data: [{ region: await domain.allocateMemoryRegion(64) }] })
      id.unref()
      console.log('ready')
      // The end of the connection flushes what was posted.
      await queue.wait()`,
    ],
    [
      "for what is ref'ed again",
      'const { id } = await connected(); id.unref().ref(); console.log("ready"); await id.disconnected',
    ],
  ])('%s', async (_, program) => {
    const accepted = deferred<ConnectionId>()
    using listener = await Listener.listen('iwarp://127.0.0.1:0', async ({ id }) => {
      const domain = id.context.allocateProtectionDomain()
      const sendQueue = id.context.createCompletionQueue({ entries: 16 })
      id.createQueuePair(domain, { sendQueue })
      await id.accept()
      accepted.resolve(id)
    })
    const child = start(`${program}\nconsole.log('ended')`, listener.uri)
    // Both from the start: it may be ready before it is known to be accepted.
    const ready = once(child.stdout as NodeJS.ReadableStream, 'data')
    const ended = outcome(child)
    using id = await accepted.promise
    await ready
    id.disconnect()
    expect(await ended).toEqual({ code: 0, printed: expect.stringContaining('ended\n') })
  })
})
