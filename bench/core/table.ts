// Figures and tables for people.
import { spread } from './statistics.js'

/** Three significant digits, thousands apart. */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return '–'
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en-US')
  return String(Number(value.toPrecision(3)))
}

/** The median, and the spread where there is one. */
export function shown(rounds: readonly number[], format: (value: number) => string = figure): string {
  const { median, low, high } = spread(rounds)
  if (!Number.isFinite(median)) return '–'
  const [middle, least, most] = [median, low, high].map(format)
  return least === middle && most === middle ? `${middle}` : `${middle} (${least}–${most})`
}

/** What figure and shown give. */
const NUMERIC = /^(|–|-?[\d.,e+-]+( \(.*\))?)$/

/** Lines of a table: columns of numbers to the right. */
export function tableLines(header: readonly string[], rows: readonly (readonly string[])[]): string[] {
  const widths = header.map((name, column) =>
    Math.max(name.length, ...rows.map((row) => row[column]?.length ?? 0)),
  )
  const numeric = header.map((_, column) => rows.every((row) => NUMERIC.test(row[column] ?? '')))
  const line = (row: readonly string[]) =>
    row
      .map((cell, column) =>
        numeric[column] ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
      )
      .join('  ')
      .trimEnd()
  return [line(header), ...rows.map(line)]
}
