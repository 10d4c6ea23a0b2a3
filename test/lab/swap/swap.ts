import { readFileSync } from 'node:fs'
import { constants } from 'node:os'
import { join } from 'node:path'
import { guestScripts } from '../base/paths.js'
import type { Shell } from '../base/shell.js'
import { until } from '../base/until.js'

/** What array-walk reports; pages are 4096 bytes. */
export interface Walk {
  bytes: number
  pages: number
  writeSeconds: number
  readSeconds: number
  seconds: number
  /** pswpout and pswpin of /proc/vmstat while it ran. */
  pagesOut: number
  pagesIn: number
  wrongPages: number
}

export interface WalkOptions {
  /** The compiled micro-benchmark: LabParts.arrayWalk. */
  program: string
  bytes: number
  /** memory.max of the control group it runs in; none by default. Who goes beyond while swap is slow is killed. */
  limitBytes?: number
  /**
   * memory.high of the control group; none by default. Who goes beyond is slowed down and never killed (cgroup-v2,
   * "Memory Interface Files"), however long swap stands still.
   */
  throttleBytes?: number
  deadlineMs?: number
}

/** An array of that size, of which half fits into memory. */
export const halfInMemory = (mebibytes: number): Pick<WalkOptions, 'bytes' | 'throttleBytes'> => ({
  bytes: mebibytes * 2 ** 20,
  throttleBytes: mebibytes * 2 ** 19,
})

/**
 * The kernel found no page of the control group to reclaim in time, which happens when swap is slow, and
 * killed what ran in it.
 */
export class WalkKilledError extends Error {
  override readonly name = 'WalkKilledError'

  constructor() {
    super('array-walk was killed: its control group is out of memory')
  }
}

/**
 * Writes integers one after another into an array, reads them back and verifies, in a control group
 * of its own. At most one swap device may be on. Wrong pages are counted, not thrown.
 */
export async function walkArray(shell: Shell, options: WalkOptions): Promise<Walk> {
  const { program, bytes, limitBytes = 'max', throttleBytes = 'max', deadlineMs = 240_000 } = options
  const script = join(guestScripts, 'load', 'walk.sh')
  const command = ['sh', script, program, String(bytes), String(limitBytes), String(throttleBytes)]
  const result = await shell.exec(command, { deadlineMs })
  // walk.sh reports a signal's end as a shell does: 128 and its number.
  if (result.status === 128 + constants.signals.SIGKILL) throw new WalkKilledError()
  const report = /^\{.*\}$/m.exec(result.stdout)?.[0]
  if (report === undefined) throw new Error(`array-walk: ${result.stderr || `ended with ${result.status}`}`)
  return JSON.parse(report) as Walk
}

/** Pages that this kernel has written to swap since it booted. */
export function pagesOut(): number {
  return Number(/^pswpout (\d+)$/m.exec(readFileSync('/proc/vmstat', 'utf8'))?.[1])
}

/** Waits until this kernel has written so many, of which it tells by a counter only. */
export async function untilPagesOut(count: number): Promise<void> {
  await until('the program swaps', 120_000, () => pagesOut() >= count)
}

/** Makes the device swap space, swaps on it while `body` runs, and takes it off again. */
export async function withSwapOn<T>(shell: Shell, device: string, body: () => Promise<T>): Promise<T> {
  await shell.run(['mkswap', device])
  await shell.run(['swapon', device])
  try {
    return await body()
  } finally {
    await shell.run(['swapoff', device], { deadlineMs: 120_000 })
  }
}
