import { lstatSync, statSync } from 'node:fs'
import { exposureOfFile } from '@rdmakit/operator-kit'
import { type Logger, pino } from 'pino'

/** The author of an action, as far as known at that time. */
export interface Actor {
  readonly tenant?: string | undefined
  readonly keyId?: string | undefined
  /** what the client calls itself */
  readonly client?: string | undefined
  /** where it came from */
  readonly peer?: string | undefined
  readonly session?: number | undefined
}

export type AuditEvent =
  | { readonly event: 'session-opened' | 'session-resumed' }
  | { readonly event: 'session-ended'; readonly reason: string; readonly slabs: number }
  | { readonly event: 'slabs-allocated' | 'slabs-freed'; readonly slabs: number; readonly held: number }
  | {
      readonly event: 'refused'
      readonly request: string
      readonly code: string
      readonly reason: string
      /** whom it said to be, of a client that has not shown it */
      readonly claims?: Actor | undefined
    }
  | {
      readonly event: 'tenants-reloaded'
      readonly added: readonly string[]
      readonly removed: readonly string[]
    }

/** Refusals per second that are written: a peer that can only connect must not fill the disk. */
const REFUSALS_PER_SECOND = 20

/** Bytes that wait for a file that cannot be written; what comes on top is lost. */
const MAXIMUM_WAITING = 2 ** 20

/**
 * The record of who had memory: a JSON line for each event, appended to a file and at level info to the log.
 * A file that cannot be written ends nothing: that is an error in the log, once until it works again.
 */
export class AuditLog {
  readonly #log: Logger
  readonly #path: string | undefined
  readonly #destination: ReturnType<typeof pino.destination> | undefined
  readonly #file: Logger | undefined
  #second = 0
  #refusals = 0
  #unwritten = 0
  #failing = false

  /** @throws when the file cannot be opened */
  constructor(log: Logger, path?: string) {
    this.#log = log.child({ audit: true })
    this.#path = path
    if (path === undefined) return
    refuseUnfit(path)
    // At once, so that a line is there when its event is over. 0600: it names clients and their memory.
    const destination = pino.destination({
      dest: path,
      append: true,
      sync: true,
      mode: 0o600,
      maxLength: MAXIMUM_WAITING,
    })
    destination.on('error', (failure: Error) => this.#fail(failure))
    destination.on('write', () => {
      this.#failing = false
    })
    this.#destination = destination
    this.#file = pino(
      {
        base: null,
        timestamp: pino.stdTimeFunctions.isoTime,
        formatters: { level: (label) => ({ level: label }) },
      },
      destination,
    )
  }

  record(who: Actor, event: AuditEvent): void {
    const line = event.event === 'refused' ? this.#refusal(who, event) : { ...event, ...who }
    if (line === undefined) return
    this.#file?.info(line)
    this.#log.info(line, event.event)
  }

  /** Reopens the file after it has been renamed. */
  reopen(): void {
    try {
      if (this.#path !== undefined) refuseUnfit(this.#path)
      this.#destination?.reopen()
    } catch (failure) {
      this.#fail(failure as Error)
    }
  }

  close(): void {
    this.#destination?.end()
  }

  #fail(failure: Error): void {
    if (!this.#failing) this.#log.error({ err: failure }, 'cannot write the audit log')
    this.#failing = true
  }

  #refusal(who: Actor, event: AuditEvent) {
    const second = Math.floor(Date.now() / 1000)
    if (second !== this.#second) {
      this.#second = second
      this.#refusals = 0
    }
    if (++this.#refusals > REFUSALS_PER_SECOND) {
      this.#unwritten++
      return undefined
    }
    const unwritten = this.#unwritten
    this.#unwritten = 0
    return { ...event, ...who, ...(unwritten === 0 ? {} : { unwritten }) }
  }
}

/** Refuses a pipe, whose reader could stop the server, and a file that others can write to. @throws Error */
function refuseUnfit(path: string): void {
  const there = statSync(path, { throwIfNoEntry: false })
  if (there?.isFIFO() === true)
    throw new Error(
      `${path} is a pipe, whose reader could stop the server; --log-level info prints the same lines`,
    )
  // A device, such as /dev/stderr may be, has rules of its own.
  if (there !== undefined && !there.isFile()) return
  const link = lstatSync(path, { throwIfNoEntry: false })
  for (const each of [there, link])
    if (each !== undefined && each.uid !== process.geteuid?.() && each.uid !== 0)
      throw new Error(`${path} belongs to user ${each.uid}`)
  if (there !== undefined && (there.mode & 0o022) !== 0)
    throw new Error(`${path} can be written by others; "chmod go-w ${path}"`)
  const place = exposureOfFile(path)
  if (place !== undefined) throw new Error(`${path} can be replaced by others: ${place}`)
}
