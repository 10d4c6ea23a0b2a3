import { formatTable, rightAligned } from '@rdmakit/operator-kit'

/** A column: its name, and what it shows of a row; numbers stand at the right. */
export type StatusColumn<Row> = readonly [name: string, cell: (row: Row) => string, align?: 'right']

/** Columns of text, for people and for awk; '' without rows. */
export function statusTable<Row>(rows: readonly Row[], columns: readonly StatusColumn<Row>[]): string {
  return formatTable(
    columns.map(([name, , align]) => (align === undefined ? name : rightAligned(name))),
    rows.map((row) => columns.map(([, cell]) => cell(row))),
  )
}
