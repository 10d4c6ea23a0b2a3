import { load } from './programs.js'

type Command = ReturnType<Awaited<ReturnType<typeof load<'nbd-client'>>>['commands']>

/** A command as it is typed under `rdmakit`, with all that its help is made of. */
export interface CommandNode {
  /** `rdmakit`, `attach` … */
  readonly words: readonly string[]
  readonly command: Command
  readonly children: readonly CommandNode[]
}

function nodeOf(
  words: readonly string[],
  command: Command,
  children = command.commands as Command[],
): CommandNode {
  return { words, command, children: children.map((child) => nodeOf([...words, child.name()], child)) }
}

/** The commands of rdmakit and, below, those of the programs that they are of. @param rdmakit its own */
export async function commandTree(rdmakit: Command): Promise<CommandNode> {
  const client = (await load('nbd-client')).commands('rdmakit')
  const server = (await load('swap-server')).commands('rdmakit swap-server')
  const real = (command: Command): CommandNode => {
    const words = ['rdmakit', command.name()]
    if (command.name() === 'swap-server') return nodeOf(words, server)
    const own =
      command.options.length > 0 ? command : client.commands.find((each) => each.name() === command.name())
    return nodeOf(words, (own as Command | undefined) ?? command)
  }
  return { words: ['rdmakit'], command: rdmakit, children: (rdmakit.commands as Command[]).map(real) }
}

/** A command and all below it. */
export function* everyCommand(node: CommandNode): Generator<CommandNode> {
  yield node
  for (const child of node.children) yield* everyCommand(child)
}

/** Its options, and those of the command that it is without a word. */
export function optionsOf({ command, children }: CommandNode) {
  const usual = children.find(({ words }) => words.slice(1).join(' ') === 'swap-server serve')
  return [command, ...(usual === undefined ? [] : [usual.command])].flatMap((each) =>
    each.createHelp().visibleOptions(each),
  )
}

/** Whether its placeholder is that of a file here: `--key-file <file>`. */
export const takesFile = ({ flags }: { readonly flags: string }) => /<(file|folder|path|device)>/.test(flags)
