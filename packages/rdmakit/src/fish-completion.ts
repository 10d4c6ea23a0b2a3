import { type CommandNode, everyCommand, optionsOf, takesFile } from './command-tree.js'

/** A script for fish that completes what that for bash does, each with the first sentence of its help. */
export function fishCompletion(root: CommandNode): string {
  const nodes = [...everyCommand(root)]
  const commands = nodes.filter((node) => node !== root).map(({ words }) => words.join(' '))
  return `# fish completion for rdmakit: what "rdmakit completion fish" prints.
function __rdmakit_at --argument-names wanted
    set -l path rdmakit
    set -l words (commandline -opc)
    for word in $words[2..-1]
        contains -- "$path $word" ${commands.map(quoted).join(' ')}
        and set path "$path $word"
    end
    test "$path" = "$wanted"
end
complete -c rdmakit -f
${nodes.flatMap(linesOf).join('\n')}
`
}

function linesOf(node: CommandNode): string[] {
  const at = `complete -c rdmakit -n "__rdmakit_at ${quoted(node.words.join(' '))}"`
  const commands = node.children.map(
    ({ words, command }) => `${at} -a ${words.at(-1)} -d ${summary(command.description())}`,
  )
  const options = optionsOf(node).map((option) => {
    const { short, long, required, argChoices, description } = option
    const names = [...(short ? [`-s ${short.slice(1)}`] : []), `-l ${long?.slice(2)}`]
    const value =
      argChoices !== undefined
        ? ['-x', '-a', quoted(argChoices.join(' '))]
        : takesFile(option)
          ? ['-r', '-F']
          : required
            ? ['-x']
            : []
    return [at, ...names, ...value, '-d', summary(description)].join(' ')
  })
  return [...commands, ...new Set(options)]
}

const quoted = (text: string) => `'${text.replaceAll(/[\\']/g, '\\$&')}'`
const summary = (text: string) => quoted((text.split(/(?<!\be\.g)[.:;] /)[0] as string).replace(/\.$/, ''))
