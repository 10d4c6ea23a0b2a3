import { type ExecFileException, execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { setTimeout as setTimer } from 'node:timers/promises'
import { EXIT, ExitError } from '@rdmakit/operator-kit'

const SWAPS = '/proc/swaps'
/** after the path of a node that was replaced */
const REMOVED = /\\040\(deleted\)$/

// These are separate processes and not system calls of this one, although each is a fork. The kernel's OOM
// killer first kills the process that is in swapoff(2), whatever its oom_score_adj (set_current_oom_origin):
// that must not be the one that serves the pages. And a process that is killed while a thread of it waits in
// either call for pages that it serves itself keeps its lock on the state folder until they come, which is
// for the successor to bring, which waits for that lock.

/** A tool that does not end in time, perhaps because the kernel waits: it is asked to end, and not waited for. */
export class LateError extends Error {}

/** @throws Error with its output, or how it ended; LateError */
export async function runTool(command: string, args: string[], timeout: number): Promise<void> {
  const words = [command, ...args].join(' ')
  let timer: NodeJS.Timeout | undefined
  const ended = new Promise<void>((resolve, reject) => {
    const child = execFile(command, args, { env: { ...process.env, LC_ALL: 'C' } }, (failure, _, stderr) => {
      if (failure === null) resolve()
      else reject(errorOf(words, failure, stderr))
    })
    // A process within the kernel ends when the kernel returns, which may be never: its end does not count.
    timer = setTimeout(() => {
      child.kill('SIGKILL')
      child.unref()
      reject(new LateError(`${words} has not finished after ${timeout / 1000} s`))
    }, timeout)
  })
  await ended.finally(() => clearTimeout(timer))
}

function errorOf(words: string, failure: ExecFileException, stderr: string): Error {
  if (failure.code === 'ENOENT')
    return new ExitError(
      `${words.split(' ')[0]} is missing; install util-linux (Debian: apt install util-linux mount)`,
      EXIT.system,
    )
  return new Error(`${words} failed: ${reasonOf(failure, stderr)}`)
}

/** In one line. A tool that the kernel ends for lack of memory says nothing itself. */
export function reasonOf(
  { code, signal, message }: Pick<ExecFileException, 'code' | 'signal' | 'message'>,
  stderr: string,
): string {
  const said = stderr.trim().split('\n').at(-1)
  if (said) return said
  if (signal === 'SIGKILL') return 'ended by SIGKILL, as the kernel does when memory runs out'
  if (signal) return `ended by ${signal}`
  return typeof code === 'number' ? `status ${code}, without a message` : message
}

/**
 * The devices that are swap, by name. The kernel shows each as it was found at swapon, and without the folders above once the
 * mount namespace of that process is gone: of a service that was restarted, /dev/nbd0 is /nbd0.
 * @param table /proc/swaps
 */
export function swapNames(table: string): { readonly name: string; readonly kibibytes: number }[] {
  return table.split('\n').flatMap((line) => {
    const [path = '', type, , used] = line.split(/\s+/)
    return type === 'partition'
      ? [{ name: basename(path.replace(REMOVED, '')), kibibytes: Number(used) }]
      : []
  })
}

/** True when the kernel swaps onto `device`. See {@link swapNames} */
export function isSwap(device: string, table = readFileSync(SWAPS, 'utf8')): boolean {
  return swapInUse(device, table) !== undefined
}

/** @returns KiB that are swapped out to `device`; undefined: it is no swap. See {@link swapNames} */
export function swapInUse(device: string, table = readFileSync(SWAPS, 'utf8')): number | undefined {
  return swapNames(table).find(({ name }) => name === basename(device))?.kibibytes
}

/** Makes swap on `device` and hands it to the kernel; freed pages are discarded (swapon(8), --discard=pages). */
export async function swapOn(device: string, priority: number | undefined): Promise<void> {
  await runTool('mkswap', [device], 60_000)
  await runTool(
    'swapon',
    ['--discard=pages', ...(priority === undefined ? [] : [`--priority=${priority}`]), device],
    60_000,
  )
}

const SWAPOFF_MS = 3_600_000
const OTHER_SWAPOFF_MS = 1_000
const SWAPOFF_LOOK_MS = 100

/** While another swapoff is under way the kernel says that there is no such swap. That one may fail. */
const isUnderWay = (failure: Error) => failure.message.endsWith('Invalid argument')

/**
 * Brings all pages back into memory. Also waits if another process brings them back: systemd does so when the
 * machine is switched off.
 * @param timeout milliseconds @param swaps where the kernel lists what is swap
 * @throws Error when the kernel cannot, most often for lack of memory; the device is then still swap. LateError: it may go on
 */
export async function swapOff(device: string, timeout = SWAPOFF_MS, swaps = SWAPS): Promise<void> {
  const deadline = performance.now() + timeout
  for (;;) {
    try {
      return await runTool('swapoff', [device], Math.max(deadline - performance.now(), OTHER_SWAPOFF_MS))
    } catch (failure) {
      if (!isSwap(device, readFileSync(swaps, 'utf8'))) return
      if (!isUnderWay(failure as Error) || performance.now() > deadline) throw failure
      await setTimer(OTHER_SWAPOFF_MS)
    }
  }
}

/**
 * Starts swapoff of a device whose node is about to go, after which swapoff could not be requested. Two
 * processes request it at once; when one gets the error that there is no such swap, the other one has
 * started.
 * @returns when it has started; `over`: it is done, or rejects as {@link swapOff} after `timeout` milliseconds
 * @throws Error as {@link swapOff}: it did not begin
 */
export async function beginSwapOff(
  device: string,
  timeout: number,
  swaps = SWAPS,
): Promise<{ over: Promise<void> }> {
  const remains = () => isSwap(device, readFileSync(swaps, 'utf8'))
  const begun = [0, 1].map(() =>
    runTool('swapoff', [device], timeout).then(
      () => undefined,
      (failure: Error) => failure,
    ),
  )
  const first = await Promise.race(begun)
  if (first !== undefined && !isUnderWay(first) && remains()) throw first
  const deadline = performance.now() + timeout
  const end = async () => {
    const failures = await Promise.all(begun)
    // It may have been under way before.
    while (remains() && performance.now() < deadline) await setTimer(SWAPOFF_LOOK_MS)
    if (!remains()) return
    const reason = failures.find((failure) => failure !== undefined && !isUnderWay(failure))
    throw reason ?? new LateError(`${device} is still swap after ${timeout / 1000} s`)
  }
  const over = end()
  // The caller has something else to wait for first.
  over.catch(() => {})
  return { over }
}
