/** The largest of each bucket, in seconds: pinning slabs is what takes long. */
export const REQUEST_BUCKETS: readonly number[] = [
  0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30,
]

/** How long requests of one kind took. */
export class Durations {
  count = 0
  /** in seconds */
  sum = 0
  /** of each bucket, those of the ones before it too */
  readonly #upTo = REQUEST_BUCKETS.map(() => 0)

  add(seconds: number): void {
    this.count++
    this.sum += seconds
    for (const [at, edge] of REQUEST_BUCKETS.entries())
      if (seconds <= edge) this.#upTo[at] = (this.#upTo[at] as number) + 1
  }

  /** How many took at most `edge`, one of {@link REQUEST_BUCKETS}. */
  upTo(edge: number): number {
    return this.#upTo[REQUEST_BUCKETS.indexOf(edge)] as number
  }
}

/**
 * Counts events in a server that cannot be read from its state later. Plain numbers: prom-client, which makes metrics of
 * them, takes a sixth of a start to load.
 */
export class ServerCounters {
  readonly sessions = { opened: 0, resumed: 0, ended: 0 }
  /** by errno name; Prometheus sees no increase from nothing to 1 */
  readonly refusals = new Map([
    ['EACCES', 0],
    ['ENOSPC', 0],
  ])
  /** by the kind of the request */
  readonly requests = new Map<string, Durations>()

  session(end: 'opened' | 'resumed' | 'ended'): void {
    this.sessions[end]++
  }

  refusal(code: string): void {
    // Codes are this program's own words, so there are few.
    this.refusals.set(code, (this.refusals.get(code) ?? 0) + 1)
  }

  request(request: string, seconds: number): void {
    let durations = this.requests.get(request)
    if (durations === undefined) {
      durations = new Durations()
      this.requests.set(request, durations)
    }
    durations.add(seconds)
  }
}
