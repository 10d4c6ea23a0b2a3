import { stripVTControlCharacters } from 'node:util'
import { Command, type ErrorOptions, Help, InvalidArgumentError, type Option } from 'commander'
import { EXIT, exitStatusOf } from './exit-status.js'
import { versionOf } from './version.js'

/** columns of a text that nobody sees on a terminal */
const PAGE_COLUMNS = 80
/** columns that the names of options and commands may take; a longer one has a line for itself */
const NAME_COLUMNS = 26
const INDENT = '  '

/** Help that fits the terminal: every line is wrapped, and a name that is long has its text below. */
class WrappedHelp extends Help {
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

/** What follows the options: paragraphs, then examples, which always come last. */
export interface HelpNotes {
  /** each a paragraph that is wrapped */
  readonly notes?: readonly string[]
  /** command lines as they are typed, one or more lines each */
  readonly examples: readonly string[]
}

/**
 * A program, or a command of one, as all of ours are: `--version`, `help <command>`, help that is wrapped, and one line
 * on stderr with {@link EXIT.usage} for a command line that is wrong. What a command adds is alike.
 */
export class ProgramCommand extends Command {
  notes: HelpNotes = { examples: [] }

  override createCommand(name: string): ProgramCommand {
    return new ProgramCommand(name)
  }

  /** One line, with where to look when the mistake does not say what is right. */
  override error(message: string, options?: ErrorOptions): never {
    const line = oneLine(message)
    super.error(
      / is invalid\.|did you mean/.test(line) ? line : `${line}; see "${this.typed} --help"`,
      options,
    )
  }

  /** as on the command line: `swap-server reclaim` */
  get typed(): string {
    return this.parent === null ? this.name() : `${this.parent.name()} ${this.name()}`
  }

  override createHelp(): Help {
    return Object.assign(new WrappedHelp(), this.configureHelp())
  }

  override helpInformation(context?: Parameters<Command['helpInformation']>[0]): string {
    const text = super.helpInformation(context)
    return text + this.after(widthOf(this, context?.error === true))
  }

  /** Paragraphs and examples at the end of this command's help. */
  withNotes(notes: HelpNotes): this {
    this.notes = notes
    return this
  }

  private after(columns: number): string {
    const { notes = [], examples } = this.notes
    const paragraphs = notes.map((text) => `\n${wrap(text, columns)}\n`)
    const lines = examples.flatMap((example) => wrapCommand(example, columns))
    return [...paragraphs, ...(lines.length === 0 ? [] : [`\nExamples:\n${lines.join('\n')}\n`])].join('')
  }
}

function widthOf(command: Command, error: boolean): number {
  const { getOutHelpWidth, getErrHelpWidth } = command.configureOutput()
  return (error ? getErrHelpWidth?.() : getOutHelpWidth?.()) ?? PAGE_COLUMNS
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
function wrapCommand(command: string, columns: number): string[] {
  const lines = fill(command.split(/(?= -)/), columns - 4 * INDENT.length)
  return lines.map((line, at) => {
    const indent = INDENT.repeat(at === 0 ? 1 : 3)
    return `${indent}${line}${at === lines.length - 1 ? '' : ' \\'}`
  })
}

/**
 * A program of this name.
 * @param home a file of its package, `import.meta.url`: where its version is written
 * @param typed how it is called where that is not by its name, e.g. `rdmakit swap-server`
 */
export function programCommand(name: string, home: string, typed = name): ProgramCommand {
  return new ProgramCommand(typed)
    .option('-V, --version', 'print version, commit and Node-API ABI')
    .on('option:version', () => {
      // Not before it is asked for: a start has better to do than to look for it.
      process.stdout.write(`${versionOf(name, home)}\n`)
      process.exit(EXIT.ok)
    })
    .helpOption('-h, --help', 'print this')
    .allowExcessArguments()
    .helpCommand(false)
    .configureOutput({
      getOutHelpWidth: () => columnsAt(process.stdout),
      getErrHelpWidth: () => columnsAt(process.stderr),
      outputError: (text, write) => write(`${name}: ${text.trim()}\n`),
    })
    .exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? EXIT.ok : EXIT.usage))
    .hook('preAction', (_, command) => refuseExcess(command))
}

/** Adds `help [command]`, behind all others. @returns it */
export function addHelp(program: ProgramCommand): ProgramCommand {
  // commander's own prints the whole program's help for a command that there is not.
  const help = program.command('help [command]').description('print the help of a command')
  help.action(async (name?: string) => {
    const found = name === undefined ? program : program.commands.find((each) => each.name() === name)
    if (found === undefined) await program.parseAsync([name as string], { from: 'user' })
    else found.help()
  })
  return help
}

function columnsAt(stream: NodeJS.WriteStream): number {
  return Math.max(40, (stream.isTTY && stream.columns) || PAGE_COLUMNS)
}

/** What commander says of a mistake, as our programs say things. */
function oneLine(text: string): string {
  return stripVTControlCharacters(text)
    .trim()
    .replace(/^error: /, '')
    .replace(/\n\(Did you mean (.*)\?\)$/s, '; did you mean $1?')
    .replaceAll(/\s*\n\s*/g, ' ')
}

/** commander only counts them. */
function refuseExcess(command: Command): void {
  const { registeredArguments, args } = command
  if (registeredArguments.at(-1)?.variadic === true) return
  const [excess] = args.slice(registeredArguments.length)
  if (excess !== undefined) command.error(`unexpected argument '${excess}'`)
}

/** What a program says of the failure that ends it: one line, whatever it is. */
export function lineOf(failure: unknown): string {
  return (failure instanceof Error ? failure.message : String(failure)).trim().replaceAll(/\s*\n\s*/g, ' ')
}

/** A parser of options and arguments; what it refuses (as wrong usage, whatever its class) is told with the option's name. */
export function parsedBy<Value>(parse: (text: string) => Value) {
  return (text: string): Value => {
    try {
      return parse(text)
    } catch (failure) {
      if (exitStatusOf(failure) === EXIT.usage)
        throw new InvalidArgumentError(`${(failure as Error).message}.`)
      throw failure
    }
  }
}

/** Options and arguments that are whole numbers in a range. @throws InvalidArgumentError, which names the option */
export function wholeFrom(minimum: number, maximum: number) {
  return (text: string): number => {
    const value = Number(text)
    if (!/^\d+$/.test(text) || value < minimum || value > maximum)
      throw new InvalidArgumentError(`It is a whole number from ${minimum} to ${maximum}.`)
    return value
  }
}

/** The same of seconds, which may have a fraction. */
export function secondsFrom(minimum: number, maximum: number) {
  return (text: string): number => {
    const value = Number(text)
    if (!/^\d+(\.\d+)?$/.test(text) || value < minimum || value > maximum)
      throw new InvalidArgumentError(`It is a number of seconds from ${minimum} to ${maximum}.`)
    return value
  }
}

/**
 * Runs a command line.
 * @param words behind the program's name
 * @param command the one that is meant where an option comes first, of a program that does one thing, and others when they are named
 * @throws what the command throws
 */
export async function runCommandLine(
  program: ProgramCommand,
  words: readonly string[],
  command?: string,
): Promise<void> {
  const [first] = words
  if (command === undefined && first === undefined) {
    const names = program.commands.map((each) => each.name())
    program.error(`give a command: ${names.slice(0, -1).join(', ')} or ${names.at(-1)}`)
  }
  const isOwn = first !== undefined && (!first.startsWith('-') || OWN_OPTIONS.has(first))
  const given = command === undefined || isOwn ? words : [command, ...words]
  await program.parseAsync([...given], { from: 'user' })
}

const OWN_OPTIONS = new Set(['-h', '--help', '-V', '--version'])
