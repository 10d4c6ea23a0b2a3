// What a block shows of its output, and whether that is what it prints.
import ts from 'typescript'
import type { Block } from './blocks.js'
import { isShell } from './shell.js'

/** The lines of the output behind a block, or the comments behind its calls of console.log, up to a `;`. */
export function shownOutput(block: Block): string[] {
  if (block.output !== undefined) return block.output.trimEnd().split('\n')
  if (isShell(block)) return []
  const { code } = block
  const file = ts.createSourceFile('example.ts', code, ts.ScriptTarget.Latest)
  return file.statements
    .filter((statement) => code.startsWith('console.log(', statement.getStart(file)))
    .flatMap(({ end }) => ts.getTrailingCommentRanges(code, end) ?? [])
    .map(({ pos, end }) => (code.slice(pos + 2, end).split(';')[0] as string).trim())
}

/** Whether a line is what is shown, where `…` stands for anything. */
function matches(line: string, shown: string): boolean {
  const [first = '', ...rest] = shown.split('…')
  if (!line.startsWith(first)) return false
  let at = first.length
  for (const piece of rest) {
    const found = line.indexOf(piece, at)
    if (found < 0) return false
    at = found + piece.length
  }
  return at === line.length || rest.at(-1) === ''
}

/** What was printed, where a line that is as shown is written as shown: equal to `shown` when all are. */
export const asShown = (printed: string, shown: readonly string[]) =>
  printed
    .trimEnd()
    .split('\n')
    .map((line, at) => (matches(line, shown[at] ?? line) ? (shown[at] ?? line) : line))
