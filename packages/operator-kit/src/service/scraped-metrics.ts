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
  return { gauge: scraped(Gauge), counter: scraped(Counter) }
}
