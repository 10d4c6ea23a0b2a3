import { readFileSync } from 'node:fs'
import type { Report } from './report.js'

/** Reports that another program has written as JSON, which has no NaN: a sample that is missing is null there. */
export function readReports(file: string): readonly Report[] {
  return JSON.parse(readFileSync(file, 'utf8'), (_, value) => (value === null ? Number.NaN : value))
}
