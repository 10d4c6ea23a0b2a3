import { type CommandNode, everyCommand, optionsOf, takesFile } from './command-tree.js'

const quoted = (words: readonly string[]) => `'${words.join(' ')}'`

/**
 * A script for bash, and for zsh with bashcompinit, that completes rdmakit's commands, options, and what options take where
 * that is one of a few words or a file.
 */
export function bashCompletion(root: CommandNode): string {
  const nodes = [...everyCommand(root)]
  const steps = nodes.flatMap(({ words, children }) =>
    children.map(
      (child) => `      ${quoted(child.words)}) path=${quoted([...words, child.words.at(-1) as string])} ;;`,
    ),
  )
  const values = nodes.flatMap((node) =>
    optionsOf(node)
      .filter(({ required, optional }) => required || optional)
      .map((option) => {
        const { long, argChoices } = option
        const complete =
          argChoices !== undefined
            ? `COMPREPLY=($(compgen -W '${argChoices.join(' ')}' -- "$word"))`
            : takesFile(option)
              ? 'COMPREPLY=($(compgen -f -- "$word")); compopt -o filenames 2>/dev/null'
              : 'COMPREPLY=()'
        return `    ${quoted([...node.words, long as string])}) ${complete}; return ;;`
      }),
  )
  const offers = nodes.map((node) => `    ${quoted(node.words)}) offers='${offersOf(node).join(' ')}' ;;`)
  return `# bash completion for rdmakit: what "rdmakit completion" prints.
_rdmakit() {
  local word=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD-1]} path=rdmakit offers= at
  for ((at = 1; at < COMP_CWORD; at++)); do
    case "$path \${COMP_WORDS[at]}" in
${steps.join('\n')}
    esac
  done
  case "$path $before" in
${values.join('\n')}
  esac
  case $path in
${offers.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$offers" -- "$word"))
}
complete -F _rdmakit rdmakit
`
}

function offersOf(node: CommandNode): string[] {
  const commands = node.children.map(({ words }) => words.at(-1) as string)
  return [...new Set([...commands, ...optionsOf(node).map(({ long }) => long as string)])]
}
