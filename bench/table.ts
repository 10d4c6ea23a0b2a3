/** One measured row: a name and its numbers, in the order of the header. */
export type Row = readonly (string | number)[]

/** A number for people: three significant digits, thousands apart. */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return '–'
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en-US')
  return String(Number(value.toPrecision(3)))
}

/** Prints rows below a header, numbers to the right. */
export function printTable(header: readonly string[], rows: readonly Row[]): void {
  const cells = rows.map((row) => row.map((cell) => (typeof cell === 'number' ? figure(cell) : cell)))
  const widths = header.map((name, column) =>
    Math.max(name.length, ...cells.map((row) => row[column]?.length ?? 0)),
  )
  const line = (row: readonly string[], numeric: (column: number) => boolean) =>
    row
      .map((cell, column) =>
        numeric(column) ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
      )
      .join('  ')
      .trimEnd()
  const isNumber = (column: number) => typeof rows[0]?.[column] === 'number'
  console.log(line(header, isNumber))
  for (const row of cells) console.log(line(row, isNumber))
}

/** The value below which `share` of the sorted samples lie. */
export function percentile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}

export function median(values: readonly number[]): number {
  return percentile(
    [...values].sort((a, b) => a - b),
    0.5,
  )
}
