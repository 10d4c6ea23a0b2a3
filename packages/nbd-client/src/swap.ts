import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { EXIT, ExitError } from '@rdmakit/swap-server'

const run = promisify(execFile)

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

/** True when the kernel swaps onto `device` (/proc/swaps). */
export function isSwap(device: string): boolean {
  return readFileSync('/proc/swaps', 'utf8')
    .split('\n')
    .some((line) => line.split(/\s+/)[0] === device)
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

/**
 * Brings all pages back into memory. Takes as long as the pages do.
 * @throws Error when the kernel cannot, most often for lack of memory; the device is then still swap
 */
export async function swapOff(device: string): Promise<void> {
  await tool('swapoff', [device], 3_600_000)
}
