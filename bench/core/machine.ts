import { cpus, loadavg, release } from 'node:os'

/** Where and on what figures were measured. Absolute ones mean nothing elsewhere. */
export function machine() {
  const processors = cpus()
  const [load = Number.NaN] = loadavg()
  return {
    processors: processors.length,
    model: processors[0]?.model ?? 'unknown',
    kernel: release(),
    node: process.version,
    /** Average of the last minute. Every figure includes the effect of other load. */
    load,
  }
}
