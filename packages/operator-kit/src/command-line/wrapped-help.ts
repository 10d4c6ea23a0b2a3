import { type Command, Help, type Option } from 'commander'

/** columns of a text that is not shown on a terminal */
export const PAGE_COLUMNS = 80
/** columns that the names of options and commands may take; a longer one has a line for itself */
const NAME_COLUMNS = 26
const INDENT = '  '

/** Help that fits the terminal: every line is wrapped, and a name that is long has its text below. */
export class WrappedHelp extends Help {
  override minWidthToWrap = 20

  override padWidth(command: Command, helper: Help): number {
    return Math.min(NAME_COLUMNS, super.padWidth(command, helper))
  }

  /** With what it may be and what it is by default: neither false nor nothing is worth a word. */
  override optionDescription({ description, argChoices, defaultValue }: Option): string {
    const silent = [undefined, true, false].includes(defaultValue) || defaultValue.length === 0
    const more = [
      ...(argChoices === undefined ? [] : [`one of ${argChoices.join(', ')}`]),
      ...(silent ? [] : [`default ${defaultValue}`]),
    ]
    return more.length === 0 ? description : `${description} (${more.join('; ')})`
  }

  override formatItem(name: string, nameWidth: number, text: string, helper: Help): string {
    if (name.length <= nameWidth || text === '') return super.formatItem(name, nameWidth, text, helper)
    // It is broken where its optional parts begin.
    const longest = fill(name.split(/(?= )|(?=\[,)/), columnsOf(this) - 2 * INDENT.length).join(
      `\n${INDENT}${INDENT}`,
    )
    const below = INDENT.repeat(2) + ' '.repeat(nameWidth)
    const wrapped = this.boxWrap(text, Math.max(this.minWidthToWrap, columnsOf(this) - below.length))
    return `${INDENT}${longest}\n${wrapped.replace(/^/gm, below)}`
  }
}

function columnsOf({ helpWidth }: Help): number {
  return helpWidth ?? PAGE_COLUMNS
}

/** Words on lines of at most so many columns. */
export function wrap(text: string, columns: number): string {
  return fill(text.split(/(?=\s)/), columns).join('\n')
}

/** Pieces on lines, each without the blank that it begins with where it begins a line. */
function fill(pieces: readonly string[], columns: number): string[] {
  const lines: string[] = []
  let line = ''
  for (const piece of pieces) {
    if (line !== '' && line.length + piece.length > columns) {
      lines.push(line)
      line = piece.trimStart()
    } else line += piece
  }
  return [...lines, line]
}

/** A command line that can be pasted: broken before an option, each line but the last with a backslash. */
export function wrapCommand(command: string, columns: number): string[] {
  const lines = fill(command.split(/(?= -)/), columns - 4 * INDENT.length)
  return lines.map((line, at) => {
    const indent = INDENT.repeat(at === 0 ? 1 : 3)
    return `${indent}${line}${at === lines.length - 1 ? '' : ' \\'}`
  })
}
