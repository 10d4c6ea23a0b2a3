import { Counter, Gauge, type Registry } from 'prom-client'

/** The values of one metric now, one for each set of labels. */
export type Labelled = readonly (readonly [labels: Record<string, string>, value: number])[]

/** Adds a metric; `read` is called when it is scraped. */
export type AddScraped = (name: string, help: string, labelNames: string[], read: () => Labelled) => void

/** Metrics that are read when they are scraped, so that they cost nothing before. */
export function scrapedMetrics(
  registry: Registry,
  prefix: string,
): { readonly gauge: AddScraped; readonly counter: AddScraped } {
  const registers = [registry]
  return {
    gauge: (name, help, labelNames, read) => {
      new Gauge({
        name: prefix + name,
        help,
        labelNames,
        registers,
        collect() {
          this.reset()
          for (const [labels, value] of read()) this.set(labels, value)
        },
      })
    },
    counter: (name, help, labelNames, read) => {
      new Counter({
        name: prefix + name,
        help,
        labelNames,
        registers,
        collect() {
          this.reset()
          for (const [labels, value] of read()) this.inc(labels, value)
        },
      })
    },
  }
}
