import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { promisify } from 'node:util'
import { EXIT, ExitError } from '@rdmakit/swap-server'

const run = promisify(execFile)
/** after the path of a node that was made anew */
const REMOVED = /\\040\(deleted\)$/

async function tool(command: string, args: string[], timeout: number): Promise<void> {
  try {
    await run(command, args, { timeout, env: { ...process.env, LC_ALL: 'C' } })
  } catch (failure) {
    const { code, stderr, message } = failure as { code?: string | number; stderr?: string; message: string }
    if (code === 'ENOENT')
      throw new ExitError(
        `${command} is missing; install util-linux (Debian: apt install util-linux mount)`,
        EXIT.system,
      )
    throw new Error(`${command} ${args.join(' ')} failed: ${(stderr ?? message).trim().split('\n').at(-1)}`)
  }
}

/**
 * True when the kernel swaps onto `device`. The kernel shows a device as it was found at swapon, and without the folders
 * above once the mount namespace of that process is gone: of a service that was restarted, /dev/nbd0 is /nbd0.
 * @param table /proc/swaps
 */
export function isSwap(device: string, table = readFileSync('/proc/swaps', 'utf8')): boolean {
  return swapInUse(device, table) !== undefined
}

/** @returns KiB that are swapped out to `device`; undefined: it is no swap. See {@link isSwap} */
export function swapInUse(device: string, table = readFileSync('/proc/swaps', 'utf8')): number | undefined {
  for (const line of table.split('\n')) {
    const [path = '', type, , used] = line.split(/\s+/)
    if (type === 'partition' && basename(path.replace(REMOVED, '')) === basename(device)) return Number(used)
  }
  return undefined
}

/** Makes swap on `device` and hands it to the kernel; freed pages are discarded (swapon(8), --discard=pages). */
export async function swapOn(device: string, priority: number | undefined): Promise<void> {
  await tool('mkswap', [device], 60_000)
  await tool(
    'swapon',
    ['--discard=pages', ...(priority === undefined ? [] : [`--priority=${priority}`]), device],
    60_000,
  )
}

const SWAPOFF_MS = 3_600_000
const OTHER_SWAPOFF_MS = 1_000

/**
 * Brings all pages back into memory. Takes as long as the pages do, whoever brings them back: systemd does it, too, when
 * the machine is switched off.
 * @throws Error when the kernel cannot, most often for lack of memory; the device is then still swap
 */
export async function swapOff(device: string): Promise<void> {
  const deadline = performance.now() + SWAPOFF_MS
  for (;;) {
    try {
      return await tool('swapoff', [device], SWAPOFF_MS)
    } catch (failure) {
      if (!isSwap(device)) return
      // While another swapoff is under way the kernel says that there is no such swap. That one may fail.
      if (!(failure as Error).message.endsWith('Invalid argument') || performance.now() > deadline)
        throw failure
      await setTimeout(OTHER_SWAPOFF_MS)
    }
  }
}
