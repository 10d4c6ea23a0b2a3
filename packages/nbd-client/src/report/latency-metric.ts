import { countOf, type NativeHistogram } from '@rdmakit/remote-volume/internal'
import { Histogram as PrometheusHistogram, type Registry } from 'prom-client'

/** Powers of two from 1 µs to 17 s, in nanoseconds: at the edges of the native buckets. */
const EDGES = Array.from({ length: 25 }, (_, i) => 2 ** (i + 10))

/** A Prometheus histogram that is read from native ones when it is scraped. */
export class LatencyMetric extends PrometheusHistogram<'kind'> {
  readonly #name: string
  readonly #help: string
  readonly #read: () => Readonly<Record<string, NativeHistogram>>

  /** @param read the histograms, by the label `kind` */
  constructor(
    name: string,
    help: string,
    registry: Registry,
    read: () => Readonly<Record<string, NativeHistogram>>,
  ) {
    super({
      name,
      help,
      labelNames: ['kind'],
      buckets: EDGES.map((edge) => edge / 1e9),
      registers: [registry],
    })
    this.#name = name
    this.#help = help
    this.#read = read
  }

  /** A registry calls this on a histogram; so does its own `get`. */
  async getForPromString() {
    const values = Object.entries(this.#read()).flatMap(([kind, histogram]) => {
      const bucket = (le: number | string, value: number) => ({
        metricName: `${this.#name}_bucket`,
        labels: { le, kind },
        value,
      })
      const count = countOf(histogram)
      const upTo = (edge: number) =>
        histogram.buckets.reduce((sum, [, to, each]) => (to <= edge ? sum + each : sum), 0)
      return [
        ...EDGES.map((edge) => bucket(edge / 1e9, upTo(edge))),
        bucket('+Inf', count),
        { metricName: `${this.#name}_sum`, labels: { kind }, value: histogram.sum / 1e9 },
        { metricName: `${this.#name}_count`, labels: { kind }, value: count },
      ]
    })
    return {
      name: this.#name,
      help: this.#help,
      type: 'histogram',
      values,
      aggregator: 'sum',
    }
  }
}
