// A program that reaches the limits of its user, for limits.test.ts: it has no rights, and its parent sets the limits.
// What it tried is its last message: for each call the error, or "fine".
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { BlockEngine } from '@rdmakit/nbd-client'
import { Poller } from '@rdmakit/ring-transport'
import { Listener, openDevice } from '@rdmakit/verbs'

const raw = createRequire(import.meta.url)('@rdmakit/verbs/addon')
const MIB = 2 ** 20

function allow(threads) {
  return new Promise((resolve) => {
    process.once('message', resolve)
    process.send({ threads })
  })
}

const tried = {}
async function attempt(name, work) {
  try {
    await work()
    tried[name] = 'fine'
  } catch (error) {
    tried[name] = { name: error.name, code: error.code, message: error.message }
  }
}

async function threads() {
  const none = () => allow(1)
  const enough = () => allow(10_000)

  // The first calls of a program, and the same once there is room: nothing is broken for good.
  const firstCalls = async (when) => {
    for (const [device, provider] of [
      ['iwarp0', 'iwarp'],
      ['shm0', 'shm'],
    ])
      await attempt(`${when}: the device of ${provider}`, () => openDevice(device, provider).close())
    await attempt(`${when}: a listener`, async () =>
      (await Listener.listen('iwarp://127.0.0.1:0', () => {})).close(),
    )
    await attempt(`${when}: an engine`, () => new BlockEngine({ size: MIB }).close())
  }
  await none()
  await firstCalls('none')
  await enough()
  await firstCalls('enough')

  const context = openDevice('iwarp0', 'iwarp')
  const domain = context.allocateProtectionDomain()
  const engine = new BlockEngine({ size: MIB })
  const needs = BlockEngine.laneRequirements()
  const spare = await domain.allocateMemoryRegion(4096, ['local-write'])
  const arena = await domain.allocateMemoryRegion(needs.arenaBytes, ['local-write'])
  const lastCalls = async (when) => {
    const channel = context.createCompletionChannel()
    const completionQueue = context.createCompletionQueue({
      entries: needs.completionQueueEntries,
      channel,
      progress: 'manual',
    })
    await attempt(`${when}: a lane`, () => {
      engine.addLane({ completionQueue, channel, queuePairs: [], memoryRegions: [arena] })
    })
    await attempt(`${when}: a poller`, () => new Poller(context).close())
    await attempt(`${when}: a completion channel`, async () => {
      const waits = context.createCompletionQueue({ entries: 16, channel: context.createCompletionChannel() })
      const enough = new AbortController()
      const waiting = waits.wait(1, { signal: enough.signal })
      enough.abort()
      await waiting.catch((error) => {
        if (error.name !== 'AbortError') throw error
      })
    })
  }
  await none()
  await lastCalls('none')
  // Without a thread for it, teardown happens here.
  await attempt('none: a region that is closed', () => spare.close())
  await enough()
  await lastCalls('enough')
}

/** One more thread at a time, until there are enough of them for all that an engine may have. */
async function threadByThread() {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-limited-'))
  const running = () => readdirSync('/proc/self/task').length
  const before = running()
  try {
    for (let more = 0; more < 8; more++) {
      await allow(before + more)
      const name = `with ${more} more`
      const file = join(folder, `backup-${more}`)
      await attempt(name, () => new BlockEngine({ size: MIB, backup: { file } }).close())
      // The kernel lists a thread for a moment after it was joined.
      for (let looks = 0; looks < 2_000 && running() > before; looks++) await delay(5)
      tried[`left after ${more}`] = running() - before
      if (tried[name] === 'fine') return
    }
  } finally {
    rmSync(folder, { recursive: true })
  }
}

async function memory() {
  const context = openDevice('iwarp0', 'iwarp')
  const handle = context.handle
  const queue = raw.createCq(handle, 16, undefined, false, 0)
  const domain = raw.allocPd(handle)
  const pair = raw.createQp(undefined, domain, queue, queue, undefined, {
    type: 2,
    maxSend: 16,
    maxReceive: 16,
    maxSendSge: 1,
    maxReceiveSge: 1,
    maxInline: 0,
    signalAll: false,
  })
  const calls = async (when) => {
    await attempt(`${when}: slots`, () => raw.close(raw.createSendSlots(pair, [], 65_536).handle))
    await attempt(`${when}: a completion queue`, () =>
      raw.close(raw.createCq(handle, 2 ** 20, undefined, false, 0)),
    )
    await attempt(`${when}: a poller`, () =>
      new Poller(context, { descriptors: 65_536, maxConnections: 16_384 }).close(),
    )
  }
  // scarce-memory.c reads it.
  process.env.RDMAKIT_MALLOC_LIMIT = `${MIB}`
  await calls('none')
  delete process.env.RDMAKIT_MALLOC_LIMIT
  await calls('enough')
  const nothing = { hugePages: 0, numaNode: -1, locked: false, shared: false, populated: true }
  await attempt('more memory than any process may have', () => raw.allocMr(domain, 2 ** 52, 1, nothing))
}

// Node's own pool, which ends the process when its threads cannot be started.
await Promise.all(Array.from({ length: 8 }, () => stat('/')))
const [part, user] = process.argv.slice(2)
process.setgid(Number(user))
process.setuid(Number(user))
await { threads, threadByThread, memory }[part]()
process.send({ tried }, () => process.exit(0))
