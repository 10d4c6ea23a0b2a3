import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { effort } from '../../../effort.js'
import { LocalShell } from '../../base/local-shell.js'
import { cpuTimeOf, waitsOf } from '../../base/process-time.js'
import type { Shell } from '../../base/shell.js'
import { ensureArrayWalk } from '../../machine/native.js'
import { RemoteSwap, rdmakitSwap } from '../../swap/remote-swap.js'
import { halfInMemory, walkArray } from '../../swap/swap.js'

const IDLE_SECONDS = 4
/** Of the array. */
const mebibytes = Math.min(256, effort(32))

/** Requests that the device has answered: Documentation/block/stat.rst of Linux, fields 1 and 5. */
async function requestsOf(shell: Shell): Promise<number> {
  const fields = (await shell.run('cat /sys/block/nbd0/stat')).trim().split(/\s+/)
  return Number(fields[0]) + Number(fields[4])
}

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
    // What wakes it when no page moves, mostly heartbeats: per second.
    const idle = await waitsOf(shell, serverProgram)
    await delay(IDLE_SECONDS * 1000)
    const before = await waitsOf(shell, serverProgram)
    const alone = (before - idle) / IDLE_SECONDS
    const cpuBefore = await cpuTimeOf(shell, serverProgram)
    const requestsBefore = await requestsOf(shell)
    const walk = await walkArray(shell, { program, ...halfInMemory(mebibytes) })
    const requests = (await requestsOf(shell)) - requestsBefore
    const cpuAfter = await cpuTimeOf(shell, serverProgram)
    const waits = (await waitsOf(shell, serverProgram)) - before
    console.log(
      `remote swap over rxe, time ${time}: ${JSON.stringify(walk)}; swap-server was woken ` +
        `${waits} times by ${requests} requests, ${alone} times a second alone, and took ` +
        `${(cpuAfter.user - cpuBefore.user).toFixed(2)} + ${(cpuAfter.system - cpuBefore.system).toFixed(2)} s`,
    )
    expect(walk.wrongPages).toBe(0)
    expect(walk.pagesOut).toBeGreaterThan(100 * mebibytes)
    expect(walk.pagesIn).toBeGreaterThan(100 * mebibytes)
    // Pages cost it nothing: requests do not wake it. Its processor time would not tell: Soft-RoCE's work is charged to
    // whichever process it interrupts.
    expect(requests).toBeGreaterThan(20 * mebibytes)
    expect(waits - 1.25 * alone * walk.seconds).toBeLessThan(requests / 4)
  })
})
