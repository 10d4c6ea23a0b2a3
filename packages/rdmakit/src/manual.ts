import { type CommandNode, everyCommand } from './command-tree.js'

/** A manual page: `rdmakit-attach.1`, in section 1, as man(7) wants it. */
export interface ManualPage {
  readonly name: string
  readonly text: string
}

/** A page for rdmakit and one for each of its commands; the commands of a command are sections of its page. */
export function manualPages(root: CommandNode, version: string): ManualPage[] {
  const pages = [root, ...root.children.filter(isNoHelp)]
  return pages.map((node) => ({
    name: `${pageName(node)}.1`,
    text: page(node, {
      below: node === root ? [] : [...everyCommand(node)].slice(1).filter(isNoHelp),
      others: pages.filter((each) => each !== node).map(pageName),
      version,
    }),
  }))
}

/** A page has what `help` prints. */
const isNoHelp = ({ words }: CommandNode) => words.at(-1) !== 'help'
const pageName = ({ words }: CommandNode) => words.join('-')

/** Text as roff takes it for text: no escapes, hyphens that can be copied, and no line that is a request. */
function roff(text: string): string {
  return text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replace(/^(?=[.'])/gm, '\\&')
}

interface PageOptions {
  readonly below: readonly CommandNode[]
  /** names of the other pages */
  readonly others: readonly string[]
  readonly version: string
}

function page(node: CommandNode, { below, others, version }: PageOptions): string {
  const name = pageName(node)
  const [first] = node.command.description().split(/[.:;] /)
  return [
    `.TH ${roff(name.toUpperCase())} 1 "" "rdmakit ${version}" "rdmakit"`,
    '.SH NAME',
    `${roff(name)} \\- ${roff((first as string).replace(/\.$/, ''))}`,
    '.SH SYNOPSIS',
    ...[node, ...below].flatMap(({ words, command }) => [
      '.P',
      `.B ${roff(words.join(' '))}`,
      roff(command.usage()),
    ]),
    '.SH DESCRIPTION',
    ...body(node),
    ...below.flatMap((each) => [`.SH "${roff(each.words.join(' ').toUpperCase())}"`, ...body(each)]),
    '.SH SEE ALSO',
    others.map((each) => `.BR ${roff(each)} (1)`).join(',\n'),
    '',
  ].join('\n')
}

const EXIT_STATUS = /^Exit status: (.*)$/s

function body({ command, children }: CommandNode): string[] {
  const help = command.createHelp()
  const options = help.visibleOptions(command)
  const headingOf = ({ helpGroupHeading = 'Options:' }) => helpGroupHeading
  const { notes = [], examples } = command.notes
  const statuses = notes.flatMap((note) => EXIT_STATUS.exec(note)?.[1] ?? [])
  return [
    roff(command.description()),
    ...notes.filter((note) => !EXIT_STATUS.test(note)).flatMap((note) => ['.P', roff(note)]),
    ...section(
      'Commands',
      children
        .filter(isNoHelp)
        .flatMap(({ words, command: each }) => item(`${words.at(-1)} ${each.usage()}`, each.description())),
    ),
    ...[...new Set(options.map(headingOf))].flatMap((heading) =>
      section(
        heading.replace(/:$/, ''),
        options
          .filter((option) => headingOf(option) === heading)
          .flatMap((option) => item(help.optionTerm(option), help.optionDescription(option))),
      ),
    ),
    ...section('Exit status', statuses.map(roff)),
    ...section('Examples', examples.length === 0 ? [] : ['.nf', ...examples.map(roff), '.fi']),
  ]
}

const section = (name: string, lines: readonly string[]) =>
  lines.length === 0 ? [] : [`.SS ${roff(name)}`, ...lines]

const item = (term: string, text: string) => ['.TP', `.B ${roff(term)}`, roff(text)]
