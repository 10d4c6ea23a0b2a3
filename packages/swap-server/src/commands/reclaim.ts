import {
  EXIT,
  ExitError,
  formatSize,
  integerOf,
  parseSize,
  type RunningProgram,
  runningPrograms,
  type SilentProgram,
} from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import type { Holding, HoldOutcome } from '../server/memory/lending.js'

const MAX_SECONDS = 86_400

/** What the size is of all that is lent, whatever that is when the server is asked. */
const ALL = 'all'

/** Parses the body of `POST /reclaim`. @throws InvalidInputError */
export function parseHolding(body: unknown): Holding {
  const { bytes, duration, patience } = (body ?? {}) as Partial<Record<keyof Holding, unknown>>
  return {
    bytes: bytes === ALL ? Number.POSITIVE_INFINITY : integerOf(bytes, '"bytes"', 0),
    duration: integerOf(duration, '"duration"', 0, MAX_SECONDS * 1000),
    patience: integerOf(patience, '"patience"', 0, MAX_SECONDS * 1000),
  }
}

export interface ReclaimCommand {
  /** as written by the operator, e.g. 2G; "all"; "0" */
  readonly size: string
  /** undefined: the only one there is */
  readonly pid: number | undefined
  /** seconds */
  readonly hold: number
  /** seconds */
  readonly wait: number
}

/**
 * @param pid undefined: the only one there is
 * @throws ExitError: no such server, or it does not answer; UsageError: several, of which one may not answer
 */
export async function serverOf(pid: number | undefined): Promise<RunningProgram> {
  const silent: SilentProgram[] = []
  const servers = await runningPrograms('swap-server', (program) => silent.push(program))
  const [server, another] = servers.filter((each) => pid === undefined || each.pid === pid)
  // One that does not answer may be the one that is meant.
  const hung = silent.find((each) => pid === undefined || each.pid === pid)
  if (hung !== undefined && (server === undefined || another === undefined))
    throw new ExitError(
      `swap-server ${hung.pid} does not answer: ${hung.reason}${server === undefined ? '' : `; name one with --pid: ${hung.pid}, ${server.pid}`}`,
      EXIT.unavailable,
    )
  if (server === undefined)
    throw new ExitError(
      pid === undefined ? 'no swap-server is running' : `--pid ${pid}: no swap-server has this process id`,
      EXIT.unavailable,
    )
  if (another !== undefined)
    throw new UsageError(
      `several swap-servers are running; name one with --pid: ${servers.map((each) => each.pid).join(', ')}`,
    )
  return server
}

/**
 * Asks a swap-server of this machine to give memory back.
 * @returns one line for people, and whether all of it came
 * @throws UsageError: no such server, or several; what the server refuses
 */
export async function reclaimMemory({ size, pid, hold, wait }: ReclaimCommand) {
  const bytes = size === ALL ? ALL : size === '0' ? 0 : parseSize(size, '<size>')
  const server = await serverOf(pid)
  const holding = { bytes, duration: hold * 1000, patience: wait * 1000 }
  const outcome = (await server.call('POST', '/reclaim', holding, wait * 1000 + 5_000)) as HoldOutcome
  const { asked, freed, moving, slabSize } = outcome
  if (bytes === 0) return { text: 'all memory is lent again', complete: true, outcome }
  if (asked === 0) return { text: 'nothing was lent, and nothing is meanwhile', complete: true, outcome }
  const missing = asked - freed
  const rest =
    missing === 0
      ? ''
      : `; ${formatSize(missing * slabSize)} are still lent, of which ${formatSize(moving * slabSize)} are being moved`
  return {
    text: `${formatSize(freed * slabSize)} of ${formatSize(asked * slabSize)} are back${rest}`,
    complete: missing === 0,
    outcome,
  }
}
