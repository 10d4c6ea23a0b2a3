// What the examples of the Markdown files are held to: that one which is wrong is told. Three seconds.
import { expect, it } from 'vitest'
import { type Block, blocksIn } from './blocks.js'
import { compile } from './compile.js'
import { execute } from './execute.js'
import { asShown, shownOutput } from './output.js'
import { missingScripts, paragraphsOf, syntaxErrors } from './shell.js'
import { Workplace } from './workplace.js'

const fence = (language: string, code: string) => `\`\`\`${language}\n${code}\n\`\`\`\n`
const blockOf = (comment: string, language: string, code: string) =>
  blocksIn('a.md', `# A\n\n${comment}\n${fence(language, code)}`)[0] as Block

async function executed(language: string, code: string, context = '') {
  using workplace = new Workplace()
  return await execute(blockOf(`<!-- example: run${context} -->`, language, code), workplace)
}

it('reads a class, its context and its output, with their lines', () => {
  const text = `<!-- example: compile\ndeclare const a: number\n-->\n${fence('ts', 'a')}\n${fence('', '1\n2')}`
  expect(blocksIn('a.md', text)).toEqual([
    {
      file: 'a.md',
      line: 5,
      language: 'ts',
      code: 'a\n',
      kind: 'compile',
      reason: '',
      context: 'declare const a: number',
      contextLine: 2,
      output: '1\n2\n',
    },
  ])
})

it.each([
  ['nothing', ''],
  ['another comment', '<!-- run -->'],
  ['an unknown class', '<!-- example: walk -->'],
  ['no reason', '<!-- example: not run -->'],
  ['a paragraph between', '<!-- example: run -->\n\nText.\n'],
])('has no class with %s in front', (_, comment) => {
  expect(blockOf(comment, 'sh', 'true').kind).toBeUndefined()
})

it('has a reason where it is not run', () => {
  expect(blockOf('<!-- example: not run: needs root: and more -->', 'sh', 'true')).toMatchObject({
    kind: 'not run',
    reason: 'needs root: and more',
  })
})

it('has no use for a class where it is a drawing', () => {
  expect(blocksIn('a.md', fence('', 'a drawing'))).toEqual([])
})

it('does not compile with a field that is not there, and says where', () => {
  const wrong = blockOf('<!-- example: compile\ndeclare const a: Buffer\n-->', 'ts', 'a.length\na.lenght')
  const right = blockOf('<!-- example: compile -->', 'js', 'const f = (a) => a')
  const data = blockOf('<!-- example: compile -->', 'json', '{]')
  const errors = compile([wrong, right, data])
  expect(errors.get(wrong)).toEqual([expect.stringMatching(/^a\.md:8: TS2551: .*'lenght'/)])
  expect(errors.get(right)).toEqual([])
  expect(errors.get(data)).toEqual([expect.stringMatching(/^a\.md:5: /)])
})

it('fails with a command that fails, one before it, and what Node.js cannot read', async () => {
  await expect(executed('sh', 'echo a; exit 3\ntrue')).rejects.toThrow(/exit 3\nended with 3\na\n/)
  await expect(executed('sh', 'true', '\nfalse\n')).rejects.toThrow('ended with 1')
  await expect(executed('js', 'const = 1')).rejects.toThrow('SyntaxError')
})

it('runs a line while the one before it waits, and ends that before the next paragraph', async () => {
  const code = `node -e "net.createServer().listen(7471, () => console.log('listening '))"
node -e "net.connect(7471, '127.0.0.1').on('connect', () => { console.log('there'); process.exit() })"

node -e "net.createServer().listen(7471, () => console.log('listening '))"
echo rdma://10.0.0.1 # over iWARP`
  expect(await executed('sh', code)).toBe('listening \nthere\nlistening \niwarp://10.0.0.1\n')
})

it('splits a shell block into lines and paragraphs', () => {
  expect(paragraphsOf('# first\na \\\n  b\nc |\n  d\n\n# then\n\ne\n')).toEqual([
    ['a \\\n  b', 'c |\n  d'],
    ['e'],
  ])
})

it('shows its output behind itself, or behind calls of console.log', () => {
  expect(shownOutput(blockOf('', 'js', "console.log(1) // 1; one\nf()\nconsole.log('a')\n"))).toEqual(['1'])
  expect(asShown('a 12 b\nc\n', ['a … b', 'c'])).toEqual(['a … b', 'c'])
  expect(asShown('a 12 bc\n', ['a … b'])).toEqual(['a 12 bc'])
  expect(asShown('a\nb\n', ['a'])).toEqual(['a', 'b'])
})

it('is told of bad shell, and of an npm script that is not there', () => {
  expect(syntaxErrors(blockOf('', 'sh', 'if true'))).toMatch(/syntax error/)
  expect(missingScripts(blockOf('', 'sh', 'npm test\nnpm run --silent bench -- x\nnpm run dmeo'))).toEqual([
    'dmeo',
  ])
})
