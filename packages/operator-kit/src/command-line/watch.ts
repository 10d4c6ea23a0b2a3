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

/** A status that can be printed: how it is taken, shown and judged. */
export interface StatusView<Status> {
  readonly take: () => Promise<Status>
  /** @param before what was taken `seconds` ago; undefined the first time */
  readonly format: (now: Status, before: Status | undefined, seconds: number) => string
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
  const { seconds, json, take, format, judge } = options
  if (seconds === undefined) {
    const status = await take()
    await print(json ? `${JSON.stringify(status, null, 2)}\n` : format(status, undefined, 0))
    // One that does not answer has said so.
    process.exitCode ??= judge(status)
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
    const status = await take()
    const passed = before === undefined ? 0 : (at - before.at) / 1000
    const home = process.stdout.isTTY ? '\x1b[H\x1b[2J' : ''
    const text = json ? JSON.stringify(status) : home + format(status, before?.status, passed)
    // None is taken while the reader has not taken the last, or they would fill this process.
    await Promise.race([print(`${text}\n`), stopped])
    before = { status, at }
    await sleep(seconds * 1000, undefined, { signal: stop.signal }).catch(() => {})
  }
}
