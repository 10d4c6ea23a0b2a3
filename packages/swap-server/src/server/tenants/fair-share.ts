/** A tenant, as far as its share of a server's bandwidth goes. Rates are in bytes per second. */
export interface ShareOf {
  readonly name: string
  readonly class: 'production' | 'opportunistic'
  readonly weight: number
  /** its limit in any case; 0: no limit */
  readonly limit: number
  /** its current use */
  readonly use: number
}

export interface Shares {
  /** by tenant; 0: no limit */
  readonly limits: ReadonlyMap<string, number>
  /** what all opportunistic tenants may use together; for the next step */
  readonly allowance: number
}

/** Production is left alone as long as it uses less of the link than this. */
const CROWDED = 0.9
/** The link is as good as full. */
const FULL = 0.95
/** Fraction of the link; an opportunistic tenant's swap must move, however slowly. */
const LEAST = 0.01
/** Fraction of the link per second. */
const INCREASE = 0.05
const DECREASE = 0.5
/** A tenant that takes less than its share may grow by so much until the next step. */
const GROWTH = 1.25

/**
 * Divides a link among tenants, one step of a second (docs/page-service/pressure.md).
 * @param capacity of the link; 0: unknown, and only the tenants' own limits hold
 * @param allowance of the step before; at the start any
 */
export function divide(capacity: number, tenants: readonly ShareOf[], allowance: number): Shares {
  const own = new Map(tenants.map(({ name, limit }) => [name, limit]))
  if (capacity === 0) return { limits: own, allowance: 0 }
  const production = tenants.filter((tenant) => tenant.class === 'production')
  const opportunistic = tenants.filter((tenant) => tenant.class === 'opportunistic')
  const used = sum(production)
  const next = nextAllowance(capacity, used, used + sum(opportunistic), allowance)
  const limits = new Map<string, number>()
  const crowded = used > CROWDED * capacity
  for (const [name, share] of crowded ? waterfill(capacity, production) : []) limits.set(name, share)
  for (const [name, share] of waterfill(next, opportunistic)) limits.set(name, share)
  for (const { name, limit } of tenants) limits.set(name, lower(limits.get(name) ?? 0, limit))
  return { limits, allowance: next }
}

/** Additive increase while there is room, multiplicative decrease when the link is full, as TGS (NSDI'23) does. */
function nextAllowance(capacity: number, production: number, all: number, before: number): number {
  const full = production > CROWDED * capacity || all > FULL * capacity
  const wished = full ? before * DECREASE : before + INCREASE * capacity
  return Math.max(LEAST * capacity, Math.min(wished, capacity - production))
}

/**
 * Weighted max-min fairness: a tenant that wants less than its share leaves the rest to the others. The demand of a
 * limited tenant is unknown; its use plus a margin stands for it. Every tenant gets at least its weight's share.
 */
function waterfill(capacity: number, tenants: readonly ShareOf[]): Map<string, number> {
  const weight = tenants.reduce((total, each) => total + each.weight, 0)
  const guaranteed = (tenant: ShareOf) => (capacity * tenant.weight) / weight
  // A use of 0 is none, and no missing limit.
  const wanted = ({ use, limit }: ShareOf) => (limit === 0 ? use * GROWTH : Math.min(use * GROWTH, limit))
  let left = capacity
  let weights = weight
  const shares = new Map<string, number>()
  // Those that want least for their weight first: what they leave is known when the others' turn comes.
  const order = [...tenants].sort((a, b) => wanted(a) / a.weight - wanted(b) / b.weight)
  for (const tenant of order) {
    const fair = (left * tenant.weight) / weights
    shares.set(tenant.name, Math.max(1, fair, guaranteed(tenant)))
    left -= Math.min(wanted(tenant), fair)
    weights -= tenant.weight
  }
  return shares
}

/** The lower one of two limits, of which 0 is none. */
function lower(a: number, b: number): number {
  if (a === 0 || b === 0) return a + b
  return Math.min(a, b)
}

function sum(tenants: readonly ShareOf[]): number {
  return tenants.reduce((total, { use }) => total + use, 0)
}

/**
 * Divides a tenant's limit among its sessions: half of it evenly, so that each can move, half by what they use.
 * @param limit 0: none
 * @returns in the order of `uses`; they add up to the limit
 */
export function divideAmongSessions(limit: number, uses: readonly number[]): number[] {
  if (limit === 0) return uses.map(() => 0)
  const used = uses.reduce((total, use) => total + use, 0)
  const even = limit / uses.length
  return uses.map((use) => (used === 0 ? even : even / 2 + (limit / 2) * (use / used)))
}
