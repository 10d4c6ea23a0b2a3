// Each code block of the Markdown files is executed or type-checked, or says why not (test/docs/blocks.ts). A case a block,
// so that a failure names its file and line. 25 s, most of it in the starts of programs.
import { expect, it } from 'vitest'
import { type Block, blocksOf, markdownFiles } from './blocks.js'
import { compile, languages } from './compile.js'
import { execute } from './execute.js'
import { asShown, shownOutput } from './output.js'
import { isShell, missingScripts, syntaxErrors } from './shell.js'
import { Workplace } from './workplace.js'

const blocks = markdownFiles().flatMap(blocksOf)
const compiled = compile(
  blocks.filter(({ kind, language }) => kind !== 'not run' && languages.includes(language)),
)

const nameOf = ({ file, line, kind, reason }: Block) =>
  `${file}:${line} ${kind ?? 'has no class'}${reason === '' ? '' : `: ${reason}`}`

for (const block of blocks)
  it(nameOf(block), async () => {
    const { kind } = block
    expect(kind, 'test/docs/blocks.ts says how a block tells its class').toBeDefined()
    expect(compiled.get(block) ?? []).toEqual([])
    if (kind === 'compile') expect(languages).toContain(block.language)
    if (isShell(block)) {
      expect(syntaxErrors(block)).toBe('')
      expect(missingScripts(block)).toEqual([])
    }
    if (kind === 'run') {
      using workplace = new Workplace()
      const [printed, shown] = [await execute(block, workplace), shownOutput(block)]
      if (shown.length > 0) expect(asShown(printed, shown)).toEqual(shown)
    }
  })
