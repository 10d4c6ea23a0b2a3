import { UsageError } from '@rdmakit/verbs'
import { clearTimeout, performance, setTimeout } from '../base/clock.js'

/** When a silent peer is pinged, when it counts as dead, and when a connection counts as idle. */
export interface LivenessOptions {
  /**
   * Milliseconds of silence after which the peer is pinged, 10 … 3600000, default 1250; 0 turns heartbeats off. The
   * peer's poller answers, not its JavaScript. With the default, an idle connection exchanges a ping and its answer
   * every 1.3 to 1.9 s.
   */
  readonly heartbeat?: number | undefined
  /**
   * Milliseconds of silence after which the connection is lost with ETIMEDOUT; more than `heartbeat`, at most 86400000,
   * default 3.5 times `heartbeat`. The check runs up to half a `heartbeat` later, so a dead peer is detected within
   * the 5 s of other time-outs. Time during which this process itself did not run does not count.
   */
  readonly deadAfter?: number | undefined
  /**
   * Milliseconds without a message, request or response in either direction, and with none in flight, after which the
   * state is `idle`, 10 … 86400000; default 0, never. The beginning and the end of idleness are detected up to a
   * quarter of that later.
   */
  readonly idleTimeout?: number | undefined
  /**
   * Whether this end gracefully closes an idle connection; default false; needs `idleTimeout`. A {@link RingClient} at
   * the other end reconnects.
   */
  readonly closeWhenIdle?: boolean | undefined
}

/** {@link LivenessOptions} with their defaults, checked. */
export type LivenessSettings = {
  readonly [K in keyof LivenessOptions]-?: NonNullable<LivenessOptions[K]>
}

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const DEFAULT_HEARTBEAT_MS = 1250
/** In heartbeats: with half a heartbeat until it is noticed, four heartbeats, of the default 5 s. */
const DEAD_AFTER = 3.5
const LEAST_MS = 10

/** @throws UsageError naming the option that is out of range */
export function livenessSettings(options: LivenessOptions): LivenessSettings {
  const { heartbeat = DEFAULT_HEARTBEAT_MS, idleTimeout = 0, closeWhenIdle = false } = options
  const { deadAfter = DEAD_AFTER * heartbeat } = options
  milliseconds('heartbeat', heartbeat, HOUR_MS)
  milliseconds('idleTimeout', idleTimeout, DAY_MS)
  if (heartbeat === 0 && options.deadAfter !== undefined)
    throw new UsageError('deadAfter needs a heartbeat: a peer that is never pinged may be silent and alive')
  if (heartbeat > 0 && !(deadAfter > heartbeat && deadAfter <= DAY_MS))
    throw new UsageError(`deadAfter must be more than heartbeat, ${heartbeat} ms, not ${deadAfter}`)
  if (closeWhenIdle && idleTimeout === 0) throw new UsageError('closeWhenIdle needs an idleTimeout')
  return { heartbeat, deadAfter, idleTimeout, closeWhenIdle }
}

function milliseconds(name: string, value: number, most: number): void {
  if (value !== 0 && !(value >= LEAST_MS && value <= most))
    throw new UsageError(`${name} must be 0 or ${LEAST_MS} … ${most} milliseconds, not ${value}`)
}

/** The connection, as {@link Liveness} uses it. */
export interface Pulse {
  /** changes whenever something of the peer was heard, message or not */
  heard(): number
  /** changes with every message either way */
  activity(): number
  /** whether something is under way that the next message depends on */
  busy(): boolean
  /** asks the peer's poller for a sign of life */
  ping(): unknown
  /** nothing was heard for that many milliseconds; the last call */
  dead(milliseconds: number): void
  idle(isIdle: boolean): void
}

/**
 * Looks after a connection now and then: pings a silent peer, tells when it counts as dead, and when the
 * connection is idle or no longer so. Nothing here is on the path of a message: counters are compared.
 */
export class Liveness {
  /** milliseconds from look to look */
  readonly every: number
  readonly #settings: LivenessSettings
  readonly #pulse: Pulse
  #heard = 0
  #silent = 0
  #pinged = false
  #excused = false
  #activity = 0
  #quiet = 0
  #idle = false
  #lookedAt = 0
  #sweep: Sweep | undefined

  constructor(settings: LivenessSettings, pulse: Pulse) {
    const { heartbeat, idleTimeout } = settings
    this.#settings = settings
    this.#pulse = pulse
    const often = Math.min(heartbeat > 0 ? heartbeat / 2 : DAY_MS, idleTimeout > 0 ? idleTimeout / 4 : DAY_MS)
    this.every = Math.max(1, Math.floor(often))
  }

  /** Looks from now on, until {@link stop}. */
  start(): void {
    const { heartbeat, idleTimeout } = this.#settings
    if (heartbeat === 0 && idleTimeout === 0) return
    this.begin(performance.now())
    this.#sweep = Sweep.of(this.every)
    this.#sweep.add(this)
  }

  stop(): void {
    this.#sweep?.delete(this)
    this.#sweep = undefined
  }

  /** From here on silence counts. */
  begin(now: number): void {
    this.#lookedAt = now
    this.#heard = this.#pulse.heard()
    this.#activity = this.#pulse.activity()
  }

  /**
   * @param now milliseconds of a clock that does not jump
   * @param late milliseconds by which the event loop was too late for this look
   */
  look(now: number, late: number): void {
    // A process that was stopped, or whose event loop was, has not listened: that time is not silence.
    const passed = Math.min(now - this.#lookedAt, 2 * this.every)
    this.#lookedAt = now
    if (this.#settings.idleTimeout > 0) this.#lookForMessages(passed)
    if (this.#settings.heartbeat > 0) this.#listen(passed, late)
  }

  #listen(passed: number, late: number): void {
    const heard = this.#pulse.heard()
    if (heard !== this.#heard) {
      this.#heard = heard
      this.#silent = 0
      this.#pinged = false
      this.#excused = false
      return
    }
    this.#silent += passed
    if (this.#silent >= this.#settings.deadAfter && this.#pinged) {
      // If this check is late, this whole process may have been stopped, and its poller had no time to take the
      // answer that is there. So once, another check decides.
      if (late <= this.every || this.#excused) {
        this.#pulse.dead(this.#silent)
        return
      }
      this.#excused = true
    }
    if (this.#silent < this.#settings.heartbeat) return
    this.#pinged = true
    this.#pulse.ping()
  }

  #lookForMessages(passed: number): void {
    const activity = this.#pulse.activity()
    if (activity !== this.#activity || this.#pulse.busy()) {
      this.#activity = activity
      this.#quiet = 0
    } else this.#quiet += passed
    const idle = this.#quiet >= this.#settings.idleTimeout
    if (idle === this.#idle) return
    this.#idle = idle
    this.#pulse.idle(idle)
  }
}

/**
 * One timer for all that want a look in the same interval: a thousand idle connections are a loop over a
 * thousand counters, and their pings leave together and are answered together.
 */
class Sweep {
  static readonly #all = new Map<number, Sweep>()

  readonly #every: number
  readonly #members = new Set<Liveness>()
  #timer: NodeJS.Timeout | undefined
  #due = 0

  private constructor(every: number) {
    this.#every = every
  }

  static of(every: number): Sweep {
    const known = Sweep.#all.get(every)
    if (known !== undefined) return known
    const sweep = new Sweep(every)
    Sweep.#all.set(every, sweep)
    return sweep
  }

  add(one: Liveness): void {
    this.#members.add(one)
    if (this.#timer === undefined) this.#arm()
  }

  delete(one: Liveness): void {
    this.#members.delete(one)
    if (this.#members.size > 0) return
    clearTimeout(this.#timer)
    this.#timer = undefined
    Sweep.#all.delete(this.#every)
  }

  #arm(): void {
    this.#due = performance.now() + this.#every
    this.#timer = setTimeout(() => this.#look(), this.#every)
    // The connections keep the event loop alive, not their timer.
    this.#timer.unref()
  }

  #look(): void {
    const now = performance.now()
    const late = now - this.#due
    for (const one of this.#members) one.look(now, late)
    if (this.#members.size > 0) this.#arm()
  }
}
