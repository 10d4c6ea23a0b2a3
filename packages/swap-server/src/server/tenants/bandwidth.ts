import { divide, divideAmongSessions, type ShareOf } from './fair-share.js'
import type { Tenant, TenantLimits, Tenants } from './tenants.js'

/** A session, as far as its use goes. */
export interface BandwidthUser {
  readonly tenant: string | undefined
}

/** The amounts that a client reports as moved; they never fall. */
export interface Moved {
  readonly bytes: number
  readonly operations: number
}

interface Meter {
  moved: Moved
  /** milliseconds of performance.now() */
  at: number
  /** per second, between the last two reports */
  use: Moved
  limits: TenantLimits
}

const INTERVAL_MS = 1_000
/** A client that has not reported for this long counts as idle. */
const STALE_MS = 5_000
const IDLE: Moved = { bytes: 0, operations: 0 }

/** Divides the server's link among its sessions, by what their clients report with each heartbeat. */
export class Bandwidth {
  readonly #capacity: number
  readonly #tenants: Tenants
  readonly #meters = new Map<BandwidthUser, Meter>()
  readonly #timer: NodeJS.Timeout
  #allowance = 0

  /** @param capacity bytes per second; 0: unknown */
  constructor(capacity: number, tenants: Tenants) {
    this.#capacity = capacity
    this.#tenants = tenants
    this.#timer = setInterval(() => this.#step(), INTERVAL_MS)
    this.#timer.unref()
  }

  /** A session begins. @returns its limits until the first report */
  enter(user: BandwidthUser): TenantLimits {
    const sessions = 1 + [...this.#meters.keys()].filter(({ tenant }) => tenant === user.tenant).length
    const { bytesPerSecond, operationsPerSecond } = this.#tenant(user)?.limits ?? NO_LIMITS
    const limits = inWholeNumbers(bytesPerSecond / sessions, operationsPerSecond / sessions)
    this.#meters.set(user, { moved: IDLE, at: performance.now(), use: IDLE, limits })
    return limits
  }

  /** @returns its limits from now on */
  report(user: BandwidthUser, moved: Moved): TenantLimits {
    const meter = this.#meters.get(user)
    if (meter === undefined) return this.enter(user)
    const now = performance.now()
    const seconds = (now - meter.at) / 1000
    // Two heartbeats that a stall brought together say nothing of a rate.
    if (seconds < 0.1) return meter.limits
    const rate = (after: number, before: number) => (after >= before ? (after - before) / seconds : 0)
    meter.use = {
      bytes: rate(moved.bytes, meter.moved.bytes),
      operations: rate(moved.operations, meter.moved.operations),
    }
    meter.moved = moved
    meter.at = now
    return meter.limits
  }

  leave(user: BandwidthUser): void {
    this.#meters.delete(user)
  }

  /** The use of a tenant's sessions together, per second. */
  useOf(tenant: string): Moved {
    const meters = this.#metersOf(tenant)
    return {
      bytes: Math.round(meters.reduce((total, { use }) => total + use.bytes, 0)),
      operations: Math.round(meters.reduce((total, { use }) => total + use.operations, 0)),
    }
  }

  /** The limits of a tenant's sessions together; 0: no limit. */
  limitsOf(tenant: string): TenantLimits {
    const meters = this.#metersOf(tenant)
    if (meters.length === 0) return this.#tenants.find(tenant)?.limits ?? NO_LIMITS
    return {
      bytesPerSecond: meters.reduce((total, { limits }) => total + limits.bytesPerSecond, 0),
      operationsPerSecond: meters.reduce((total, { limits }) => total + limits.operationsPerSecond, 0),
    }
  }

  close(): void {
    clearInterval(this.#timer)
  }

  #step(): void {
    const stale = performance.now() - STALE_MS
    for (const meter of this.#meters.values()) if (meter.at < stale) meter.use = IDLE
    const present = new Map<string, Tenant>()
    for (const user of this.#meters.keys()) {
      const tenant = this.#tenant(user)
      if (tenant !== undefined) present.set(tenant.name, tenant)
    }
    const shares = [...present.values()].map(
      (tenant): ShareOf => ({
        name: tenant.name,
        class: tenant.class,
        weight: tenant.weight,
        limit: tenant.limits.bytesPerSecond,
        use: this.useOf(tenant.name).bytes,
      }),
    )
    const { limits, allowance } = divide(this.#capacity, shares, this.#allowance)
    this.#allowance = allowance
    for (const tenant of present.values()) {
      const meters = this.#metersOf(tenant.name)
      const bytes = divideAmongSessions(
        limits.get(tenant.name) ?? 0,
        meters.map(({ use }) => use.bytes),
      )
      const operations = divideAmongSessions(
        tenant.limits.operationsPerSecond,
        meters.map(({ use }) => use.operations),
      )
      for (const [at, meter] of meters.entries())
        meter.limits = inWholeNumbers(bytes[at] ?? 0, operations[at] ?? 0)
    }
  }

  #tenant(user: BandwidthUser): Tenant | undefined {
    return user.tenant === undefined ? undefined : this.#tenants.find(user.tenant)
  }

  #metersOf(tenant: string): Meter[] {
    return [...this.#meters].filter(([user]) => user.tenant === tenant).map(([, meter]) => meter)
  }
}

const NO_LIMITS: TenantLimits = { bytesPerSecond: 0, operationsPerSecond: 0 }

/** Rounded up: a limit stays one. */
function inWholeNumbers(bytes: number, operations: number): TenantLimits {
  return { bytesPerSecond: Math.ceil(bytes), operationsPerSecond: Math.ceil(operations) }
}
