import CliTable from 'cli-table3'

const NO_BORDER = {
  top: '',
  'top-mid': '',
  'top-left': '',
  'top-right': '',
  bottom: '',
  'bottom-mid': '',
  'bottom-left': '',
  'bottom-right': '',
  left: '',
  'left-mid': '',
  mid: '',
  'mid-mid': '',
  right: '',
  'right-mid': '',
  middle: '  ',
}

/** A column: its name, or its name and that it holds numbers, which stand at the right. */
export type Column = string | { readonly name: string; readonly align: 'right' }

/** A column of numbers. */
export const rightAligned = (name: string): Column => ({ name, align: 'right' })

/** Columns of text, for people and for awk; '' without rows. */
export function formatTable(columns: readonly Column[], rows: readonly (readonly string[])[]): string {
  if (rows.length === 0) return ''
  const table = new CliTable({
    chars: NO_BORDER,
    head: columns.map((column) => (typeof column === 'string' ? column : column.name)),
    colAligns: columns.map((column) => (typeof column === 'string' ? 'left' : column.align)),
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0 },
  })
  // Names come from other machines: no control characters on this terminal.
  table.push(...rows.map((row) => row.map((cell) => cell.replace(/\p{Cc}/gu, '?'))))
  return `${table
    .toString()
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')}\n`
}
