// How a server's places (sessions, sessions that linger, data connections) are divided among tenants, and how many
// there are. Decided from their inputs alone.

/** The users of places. */
export interface PlacesTaken {
  /** places in all */
  readonly total: number
  /** of the server, whether they have places or not */
  readonly tenants: number
  /** by name */
  readonly taken: ReadonlyMap<string, number>
}

/** Half of all places is divided evenly: no number of others' takes them from a tenant that has fewer. */
export function keptForEach({ total, tenants }: Pick<PlacesTaken, 'total' | 'tenants'>): number {
  return Math.floor(total / (2 * Math.max(1, tenants)))
}

/**
 * Why a tenant gets no further place.
 * @param most what the tenants file allows it; undefined: no more than there is
 * @returns undefined: it gets one
 */
export function refusalOfPlace(
  name: string,
  most: number | undefined,
  places: PlacesTaken,
): 'own limit' | 'none left' | 'kept for others' | undefined {
  const mine = places.taken.get(name) ?? 0
  if (most !== undefined && mine >= most) return 'own limit'
  const kept = keptForEach(places)
  let used = 0
  let owed = Math.max(0, places.tenants - places.taken.size - (places.taken.has(name) ? 0 : 1)) * kept
  for (const [tenant, count] of places.taken) {
    used += count
    if (tenant !== name) owed += Math.max(0, kept - count)
  }
  if (used >= places.total) return 'none left'
  // The places kept for a tenant are its own, even if others have more than their part, which a reload can cause.
  return mine < kept || used + owed < places.total ? undefined : 'kept for others'
}

/** Descriptors that this process may have open, and has. */
export interface Descriptors {
  readonly limit: number
  readonly open: number
}

/** The places of a server. */
export interface Budget {
  /** that have not shown who they are, and have some memory to do so */
  readonly greetings: number
  /** that wait for such a place */
  readonly line: number
  readonly sessions: number
  readonly dataConnections: number
}

export interface BudgetWishes {
  /** sessions at most */
  readonly sessions: number
  /** where it listens: each listener has places of its own for those who have not shown a request yet */
  readonly listeners: number
  /** of one connection */
  readonly descriptorsEach: number
  /** of the memory that it lends */
  readonly descriptorsOfSlabs: number
}

const MAX_GREETINGS = 32
const LEAST_GREETINGS = 16
const MAX_DATA_CONNECTIONS = 65_536
/** for log files, control sockets, metrics, and what a moment takes */
const SPARE_DESCRIPTORS = 48
/** as verbs' listeners do (software/arrivals.h) */
const ARRIVALS_SHARE = 8
const LEAST_ARRIVALS = 16
const MAX_ARRIVALS = 2048

/** Divides what RLIMIT_NOFILE leaves: the rest, once all else has its part, is for data connections. */
export function budgetOf({ limit, open }: Descriptors, wishes: BudgetWishes): Budget {
  const { descriptorsEach: each, listeners } = wishes
  const arrivals = Math.min(MAX_ARRIVALS, Math.max(LEAST_ARRIVALS, Math.floor(limit / ARRIVALS_SHARE)))
  const left = limit - open - SPARE_DESCRIPTORS - arrivals * listeners - wishes.descriptorsOfSlabs
  const part = (share: number, least: number, most: number) =>
    Math.min(most, Math.max(least, Math.floor(left / share / each)))
  const greetings = part(8, LEAST_GREETINGS, MAX_GREETINGS)
  const sessions = part(4, 1, wishes.sessions)
  const rest = Math.floor(left / each) - greetings - sessions
  return {
    greetings,
    // Those have a place of a listener still.
    line: arrivals * Math.max(1, listeners),
    sessions,
    dataConnections: Math.min(MAX_DATA_CONNECTIONS, Math.max(1, rest)),
  }
}
