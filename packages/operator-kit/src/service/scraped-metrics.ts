import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

/** The values of one metric now, one for each set of labels. */
export type Labelled = readonly (readonly [labels: Record<string, string>, value: number])[]

/** Adds a metric; `read` is called when it is scraped. */
export type AddScraped = (name: string, help: string, labelNames: string[], read: () => Labelled) => void

/** A distribution that is counted elsewhere. */
export interface Distribution {
  readonly sum: number
  readonly count: number
  /** How many were at most `edge`. */
  upTo(edge: number): number
}

/** Adds a histogram with one label; `read` gives the distribution of each value of it. */
export type AddScrapedHistogram = (
  name: string,
  help: string,
  label: string,
  edges: readonly number[],
  read: () => Readonly<Record<string, Distribution>>,
) => void

/** Metrics that are read when they are scraped, so that they cost nothing before. */
export function scrapedMetrics(
  registry: Registry,
  prefix: string,
): { readonly gauge: AddScraped; readonly counter: AddScraped; readonly histogram: AddScrapedHistogram } {
  const scraped =
    (Kind: typeof Gauge<string> | typeof Counter<string>): AddScraped =>
    (name, help, labelNames, read) => {
      new Kind({
        name: prefix + name,
        help,
        labelNames,
        registers: [registry],
        collect() {
          this.reset()
          for (const [labels, value] of read()) this.inc(labels, value)
        },
      })
    }
  const histogram: AddScrapedHistogram = (name, help, label, edges, read) => {
    new ScrapedHistogram(registry, prefix + name, help, label, edges, read)
  }
  return { gauge: scraped(Gauge), counter: scraped(Counter), histogram }
}

class ScrapedHistogram extends Histogram {
  readonly #name: string
  readonly #help: string
  readonly #label: string
  readonly #edges: readonly number[]
  readonly #read: () => Readonly<Record<string, Distribution>>

  constructor(
    registry: Registry,
    name: string,
    help: string,
    label: string,
    edges: readonly number[],
    read: () => Readonly<Record<string, Distribution>>,
  ) {
    super({ name, help, labelNames: [label], buckets: [...edges], registers: [registry] })
    this.#name = name
    this.#help = help
    this.#label = label
    this.#edges = edges
    this.#read = read
  }

  /** A registry calls this on a histogram; so does its own `get`. */
  async getForPromString() {
    const values = Object.entries(this.#read()).flatMap(([key, distribution]) => {
      const { sum, count } = distribution
      const labels = { [this.#label]: key }
      const bucket = (le: number | string, value: number) => ({
        metricName: `${this.#name}_bucket`,
        labels: { le, ...labels },
        value,
      })
      return [
        ...this.#edges.map((edge) => bucket(edge, distribution.upTo(edge))),
        bucket('+Inf', count),
        { metricName: `${this.#name}_sum`, labels, value: sum },
        { metricName: `${this.#name}_count`, labels, value: count },
      ]
    })
    return { name: this.#name, help: this.#help, type: 'histogram', values, aggregator: 'sum' }
  }
}
