import { Counter, Histogram, Registry } from 'prom-client'

/** The prefix of each metric of a swap-server. */
export const METRICS_PREFIX = 'rdmakit_swap_server_'

/** Seconds that a control request takes: pinning slabs is what takes long. */
const REQUEST_BUCKETS = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30]

/** Counts events in a server that cannot be read from its state later. */
export class ServerCounters {
  readonly registry = new Registry()
  readonly #sessions: Counter<'end'>
  readonly #refusals: Counter<'code'>
  readonly #requests: Histogram<'request'>

  constructor() {
    const registers = [this.registry]
    this.#sessions = new Counter({
      name: `${METRICS_PREFIX}sessions_total`,
      help: 'Sessions opened, resumed and ended',
      labelNames: ['end'],
      registers,
    })
    this.#refusals = new Counter({
      name: `${METRICS_PREFIX}refusals_total`,
      help: 'Requests and connections refused, by errno name',
      labelNames: ['code'],
      registers,
    })
    this.#requests = new Histogram({
      name: `${METRICS_PREFIX}request_duration_seconds`,
      help: 'From a control request to its answer',
      labelNames: ['request'],
      buckets: REQUEST_BUCKETS,
      registers,
    })
    // Prometheus sees no increase from nothing to 1.
    for (const end of ['opened', 'resumed', 'ended']) this.#sessions.inc({ end }, 0)
    for (const code of ['EACCES', 'ENOSPC']) this.#refusals.inc({ code }, 0)
  }

  session(end: 'opened' | 'resumed' | 'ended'): void {
    this.#sessions.inc({ end })
  }

  refusal(code: string): void {
    // Codes are this program's own words, so there are few.
    this.#refusals.inc({ code })
  }

  request(request: string, seconds: number): void {
    this.#requests.observe({ request }, seconds)
  }
}
