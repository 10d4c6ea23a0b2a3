import type { RunningProcess } from '../base/shell.js'

/** Of the kernel's log: a page that did not come or go. */
export const ioError = /I\/O error|(?:Read|Write)-error on swap/

/**
 * What does not hold, in words. Say what must hold as a comparison that a number must pass: one that could not be read is
 * NaN, and passes none.
 */
export function violated(conditions: readonly (readonly [holds: boolean, otherwise: string])[]): string[] {
  return conditions.flatMap(([holds, otherwise]) => (holds ? [] : [otherwise]))
}

/** How a trial's command ends: what was seen as JSON, and what of it must not be. @returns 0 when all is well */
export function conclude(saw: object, faults: readonly string[], say: (line: string) => void): number {
  say(JSON.stringify(saw))
  for (const fault of faults) say(`wrong: ${fault}`)
  return faults.length === 0 ? 0 : 1
}

/** Seconds of each step of page-churn that took more than one. */
export function stallsOf(churn: RunningProcess | undefined): number[] {
  return [...(churn?.stdout ?? '').matchAll(/^stall (\S+)$/gm)].map(([, seconds]) => Number(seconds))
}

/** How often page-churn has said that it goes on. */
export function stepsTold(churn: RunningProcess): number {
  return churn.stdout.match(/^steps /gm)?.length ?? 0
}
