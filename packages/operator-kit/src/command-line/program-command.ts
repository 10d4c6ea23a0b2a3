import { stripVTControlCharacters } from 'node:util'
import { Command, type ErrorOptions, type Help } from 'commander'
import { EXIT } from './exit-status.js'
import { versionOf } from './version.js'
import { PAGE_COLUMNS, WrappedHelp, wrap, wrapCommand } from './wrapped-help.js'

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
      / is invalid[. ]|did you mean/.test(line) ? line : `${line}; see "${this.typed} --help"`,
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
  // For no command but "--" commander would print all of the help.
  if (command === undefined && (words.length === 1 ? first === '--' : first === undefined)) {
    const names = program.commands.map((each) => each.name())
    program.error(`give a command: ${names.slice(0, -1).join(', ')} or ${names.at(-1)}`)
  }
  const isOwn = first !== undefined && (!first.startsWith('-') || OWN_OPTIONS.has(first))
  const given = command === undefined || isOwn ? words : [command, ...words]
  await program.parseAsync([...given], { from: 'user' })
}

const OWN_OPTIONS = new Set(['-h', '--help', '-V', '--version'])
