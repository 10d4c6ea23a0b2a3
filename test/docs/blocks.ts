// The code blocks of the Markdown files, each with what the comment in front of it says of it. The comment does not show
// when the file is rendered. Its first line has the block's class, what follows is the context:
//
//   <!-- example: run            executed by npm test. Context: shell lines that are executed first
//   <!-- example: compile        type-checked by npm test. Context: TypeScript that declares what it uses
//   <!-- example: lab            executed in the lab's guest. Context as of `run`
//   <!-- example: clone          executed in a fresh clone by scripts/readme.sh, which npm run soak does
//   <!-- example: not run: WHY   the reason is required
//
// A block without a language is a drawing or output, and needs no class.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import MarkdownIt from 'markdown-it'
import { top } from '../lab/base/paths.js'

const KINDS = ['run', 'compile', 'lab', 'clone', 'not run'] as const
export type Kind = (typeof KINDS)[number]

export interface Block {
  /** relative to the top folder */
  readonly file: string
  /** 1-based, of the block's first line of code */
  readonly line: number
  /** the word behind the opening fence, as `ts` */
  readonly language: string
  readonly code: string
  /** undefined: nothing says what it is, which is a failure */
  readonly kind: Kind | undefined
  /** of a block that is not run */
  readonly reason: string
  readonly context: string
  /** 1-based, of the context's first line */
  readonly contextLine: number
  /** what a block without a language right behind it shows as its output */
  readonly output: string | undefined
}

const SKIPPED = ['node_modules', 'build', 'dist', 'test-results']

/** Every Markdown file of the repository that is no report of a program, relative to its top folder. */
export function markdownFiles(folder = ''): string[] {
  return readdirSync(join(top, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name)
    if (entry.isDirectory())
      return entry.name.startsWith('.') || SKIPPED.includes(entry.name) ? [] : markdownFiles(path)
    return entry.name.endsWith('.md') && !entry.name.endsWith('.api.md') ? [path] : []
  })
}

/** CommonMark with tables, as GitHub and npm show it. */
const markdown = new MarkdownIt({ html: true })

const textOf = (file: string) => readFileSync(join(top, file), 'utf8')

export const tokensOf = (file: string) => markdown.parse(textOf(file), {})

export const blocksOf = (file: string) => blocksIn(file, textOf(file))

export function blocksIn(file: string, text: string): Block[] {
  const tokens = markdown.parse(text, {})
  return tokens.flatMap((token, at) => {
    if (token.type !== 'fence' || token.info === '') return []
    const [before, behind] = [tokens[at - 1], tokens[at + 1]]
    const comment = before?.type === 'html_block' ? before : undefined
    return {
      file,
      line: (token.map?.[0] ?? 0) + 2,
      language: token.info,
      code: token.content,
      ...classOf(comment?.content ?? ''),
      contextLine: (comment?.map?.[0] ?? 0) + 2,
      output: behind?.type === 'fence' && behind.info === '' ? behind.content : undefined,
    }
  })
}

function classOf(comment: string): Pick<Block, 'kind' | 'reason' | 'context'> {
  const [, first, context = ''] = /^<!-- example: (.*?)(?:\n(.*?))?\s*-->\s*$/s.exec(comment) ?? []
  const [word, reason = ''] = (first ?? '').trim().split(/: (.*)/s)
  const kind = KINDS.find((each) => each === word)
  const complete = (kind === 'not run') === (reason !== '')
  return { kind: complete ? kind : undefined, reason, context }
}
