import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { effort } from '../../../effort.js'
import { LocalShell } from '../../base/local-shell.js'
import { cpuTimeOf } from '../../base/process-time.js'
import { ensureArrayWalk } from '../../machine/native.js'
import { RemoteSwap, rdmakitSwap } from '../../swap/remote-swap.js'
import { walkArray } from '../../swap/swap.js'

const mebibyte = 1024 * 1024
const IDLE_SECONDS = 4
/** Of the array; half of it fits into memory. */
const mebibytes = Math.min(256, effort(64))

// One machine's kernel swaps to the memory of a swap-server, over rxe: both ends in this guest.
describe('remote swap over rxe', () => {
  const serverProgram = 'swap-server/dist/cli.js'
  const shell = new LocalShell()
  let swap: RemoteSwap
  let program: string

  beforeAll(async () => {
    program = await ensureArrayWalk()
    swap = await RemoteSwap.attach(shell, shell, rdmakitSwap('rdma://10.77.0.1:7471', '384M', '384M'))
  }, 120_000)

  afterAll(async () => {
    await swap?.detach()
  }, 120_000)

  test('every protection against a swap deadlock is granted', () => {
    expect(swap.client.stderr).not.toMatch(/warning/)
  })

  // The second time finds pages that were discarded and written again.
  test.each([1, 2])(`${mebibytes} MiB under half as much memory come back right, time %i`, async (time) => {
    // Its idle use, mostly heartbeats: this machine's value per second.
    const idle = await cpuTimeOf(shell, serverProgram)
    await delay(IDLE_SECONDS * 1000)
    const before = await cpuTimeOf(shell, serverProgram)
    const alone = (before.user + before.system - idle.user - idle.system) / IDLE_SECONDS
    const bytes = mebibytes * mebibyte
    const walk = await walkArray(shell, { program, bytes, throttleBytes: bytes / 2 })
    const after = await cpuTimeOf(shell, serverProgram)
    const used = { user: after.user - before.user, system: after.system - before.system }
    console.log(
      `remote swap over rxe, time ${time}: ${JSON.stringify(walk)}; swap-server's CPU: ` +
        `${before.user.toFixed(2)} + ${before.system.toFixed(2)} s before, ` +
        `${after.user.toFixed(2)} + ${after.system.toFixed(2)} s after, ${alone.toFixed(3)} s a second alone`,
    )
    expect(walk.wrongPages).toBe(0)
    expect(walk.pagesOut).toBeGreaterThan(100 * mebibytes)
    expect(walk.pagesIn).toBeGreaterThan(100 * mebibytes)
    // Pages cost it nothing: what it used meanwhile is what it uses alone, but for what the clock of processes rounds.
    expect(used.user + used.system).toBeLessThan((1.5 * alone + 0.01) * walk.seconds + 0.05)
  })
})
