import { setTimeout as sleep } from 'node:timers/promises'
import { InvalidArgumentError } from 'commander'
import { print } from '../output/stdio.js'

/** Of `--watch [seconds]`. @throws InvalidArgumentError */
export function parseWatchInterval(text: string): number {
  const seconds = Number(text)
  if (!(seconds >= 0.1 && seconds <= 3600))
    throw new InvalidArgumentError('It is a number of seconds from 0.1 to 3600.')
  return seconds
}

/** Something whose status was asked for, and that did not tell it. */
export interface Unreachable {
  /** one line: what it is, and why */
  readonly message: string
  /** of a command that finds it so */
  readonly exitStatus: number
}

/** A status that can be printed: how it is taken, shown and judged. */
export interface StatusView<Status> {
  /** @param unreachable told of each that is not in the status, though it should be */
  readonly take: (unreachable: (it: Unreachable) => void) => Promise<Status>
  /**
   * @param before what was taken `seconds` ago; undefined the first time
   * @returns '': there is nothing to show
   */
  readonly format: (now: Status, before: Status | undefined, seconds: number) => string
  /** one line that says that there is nothing to show */
  readonly nothing: string
  /** the exit status that expresses the state; a watched status has none */
  readonly judge: (status: Status) => number
}

export interface WatchOptions<Status> extends StatusView<Status> {
  /** undefined: once */
  readonly seconds: number | undefined
  readonly json: boolean
}

/**
 * Prints a status once, or repeatedly until SIGINT or SIGTERM: on a terminal always at the same place. As
 * JSON one line each time, when it is watched.
 */
export async function printStatus<Status>(options: WatchOptions<Status>): Promise<void> {
  const { seconds, json, judge } = options
  if (seconds === undefined) {
    const { status, unreachable } = await look(options)
    process.stderr.write(linesOf(unreachable))
    await print(json ? `${JSON.stringify(status, null, 2)}\n` : tables(options, status, unreachable))
    process.exitCode =
      unreachable.length > 0 ? Math.max(...unreachable.map((it) => it.exitStatus)) : judge(status)
    return
  }
  const stop = new AbortController()
  const stopped = new Promise<void>((resolve) => stop.signal.addEventListener('abort', () => resolve()))
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => stop.abort())
  // The reader has seen enough, e.g. head(1).
  process.stdout.on('error', () => stop.abort())
  let before: { status: Status; at: number } | undefined
  while (!stop.signal.aborted) {
    const at = performance.now()
    const { status, unreachable } = await look(options)
    const passed = before === undefined ? 0 : (at - before.at) / 1000
    const home = process.stdout.isTTY ? '\x1b[H\x1b[2J' : ''
    // With the tables, which would erase it from a terminal; JSON has no place for it.
    if (json) process.stderr.write(linesOf(unreachable))
    const text = json
      ? JSON.stringify(status)
      : home +
        [tables(options, status, unreachable, before?.status, passed), linesOf(unreachable)]
          .filter((part) => part !== '')
          .join('\n')
    // None is taken while the reader has not taken the last, or they would fill this process.
    await Promise.race([print(`${text}\n`), stopped])
    before = { status, at }
    await sleep(seconds * 1000, undefined, { signal: stop.signal }).catch(() => {})
  }
}

async function look<Status>({ take }: StatusView<Status>) {
  const unreachable: Unreachable[] = []
  const status = await take((it) => unreachable.push(it))
  return { status, unreachable }
}

const linesOf = (unreachable: readonly Unreachable[]) =>
  unreachable.map(({ message }) => `${message}\n`).join('')

/** That nothing is running is said only when that is known. */
function tables<Status>(
  { format, nothing }: StatusView<Status>,
  now: Status,
  unreachable: readonly Unreachable[],
  before?: Status,
  seconds = 0,
): string {
  const text = format(now, before, seconds)
  return text === '' && unreachable.length === 0 ? `${nothing}\n` : text
}
