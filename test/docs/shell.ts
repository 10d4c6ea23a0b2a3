// Blocks of shell: their lines, and what can be said of them without executing them.
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { top } from '../lab/base/paths.js'
import type { Block } from './blocks.js'

export const isShell = ({ language }: Block) => language === 'sh'

/** The lines with those that they are continued on, by paragraph; comments between them are left out. */
export function paragraphsOf(code: string): string[][] {
  return code
    .replaceAll(/^ *#.*\n/gm, '')
    .split(/\n{2,}/)
    .map((paragraph) => paragraph.split(/(?<![\\|])\n/).filter((line) => line.trim() !== ''))
    .filter((lines) => lines.length > 0)
}

/** What bash says of a block that it cannot read. */
export const syntaxErrors = ({ code }: Block) =>
  spawnSync('bash', ['-n'], { input: code, encoding: 'utf8' }).stderr

/** The npm scripts that a block names and that package.json does not have. */
export function missingScripts({ code }: Block): string[] {
  const { scripts } = JSON.parse(readFileSync(join(top, 'package.json'), 'utf8')) as { scripts: object }
  const named = [...code.matchAll(/\bnpm (?:run (?:--silent )?([\w:]+)|(test)\b)/g)]
  return named.map(([, script, test]) => (script ?? test) as string).filter((name) => !(name in scripts))
}
