// Type-checks blocks as a user's compiler does: each is a module behind its context, in a folder with the packages.
import { join } from 'node:path'
import protobuf from 'protobufjs'
import ts from 'typescript'
import type { Block } from './blocks.js'
import { Workplace } from './workplace.js'

const OPTIONS: ts.CompilerOptions = {
  target: ts.ScriptTarget.ES2023,
  module: ts.ModuleKind.NodeNext,
  types: ['node'],
  strict: true,
  noEmit: true,
  skipLibCheck: true,
}
/** What JavaScript does not say: a parameter's type. */
const IMPLICIT_ANY = [7006, 7019, 7031]

/** What {@link compile} takes. */
export const languages = ['ts', 'js', 'json', 'proto']

/** Why a block of data cannot be read. */
function readError({ language, code }: Block): string | undefined {
  try {
    if (language === 'json') JSON.parse(code)
    else protobuf.parse(code)
    return undefined
  } catch (failure) {
    return (failure as Error).message
  }
}

/** @returns for each block what the compiler says of it, each with file and line; none: it compiles */
export function compile(blocks: readonly Block[]): Map<Block, string[]> {
  using workplace = new Workplace()
  const programs = new Map<string, Block>()
  const errors = new Map<Block, string[]>(blocks.map((block) => [block, []]))
  for (const block of blocks) {
    if (block.language === 'ts' || block.language === 'js')
      programs.set(join(workplace.folder, `${programs.size}.mts`), block)
    else {
      const error = readError(block)
      if (error !== undefined) errors.get(block)?.push(`${block.file}:${block.line}: ${error}`)
    }
  }
  const host = ts.createCompilerHost(OPTIONS)
  const readFile = host.readFile
  host.readFile = (path) => {
    const block = programs.get(path)
    return block === undefined ? readFile(path) : sourceOf(block)
  }
  const program = ts.createProgram([...programs.keys()], OPTIONS, host)
  for (const [path, block] of programs)
    for (const { start = 0, messageText, code, file } of ts.getPreEmitDiagnostics(
      program,
      program.getSourceFile(path),
    )) {
      if (block.language === 'js' && IMPLICIT_ANY.includes(code)) continue
      const at = file?.getLineAndCharacterOfPosition(start).line ?? 0
      const text = ts.flattenDiagnosticMessageText(messageText, ' ')
      errors.get(block)?.push(`${block.file}:${lineOf(block, at)}: TS${code}: ${text}`)
    }
  return errors
}

/** The context of a block that is run is shell. */
const declarations = ({ kind, context }: Block) => (kind === 'compile' ? context : '')

/** A module, whatever it imports. */
const sourceOf = (block: Block) => `${declarations(block)}\n${block.code}\nexport {}\n`

function lineOf(block: Block, at: number): number {
  const before = declarations(block).split('\n').length
  return at < before ? block.contextLine + at : block.line + at - before
}
