// scripts/readme.sh: follows README.md as somebody who has just cloned the repository, each line as it stands. First what
// sets the clone up, from the top (the class `clone`), then the blocks that npm test executes too, here without a host of
// their own and with no word of them changed.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { top } from '../lab/base/paths.js'
import { blocksIn } from './blocks.js'
import { execute } from './execute.js'
import { asShown, shownOutput } from './output.js'
import type { Place } from './workplace.js'

/** npm test sets up what a fresh machine lacks, and may take 10 minutes after that on a quiet one. */
const PATIENCE_MS = 3_600_000

const home = mkdtempSync(join(tmpdir(), 'rdmakit-readme-'))
const folder = join(home, 'rdmakit')
const place: Place = {
  folder,
  // What `npm install --global rdmakit` puts on PATH, from the clone.
  env: { ...process.env, PATH: [join(folder, 'node_modules/.bin'), process.env.PATH].join(delimiter) },
  patienceMs: PATIENCE_MS,
  echo: true,
  here: (text) => text,
  launch: async (line) => ['bash', '-ec', line],
}

try {
  execFileSync('git', ['clone', '--quiet', top, folder])
  const blocks = blocksIn('README.md', readFileSync(join(folder, 'README.md'), 'utf8'))
  for (const kind of ['clone', 'run'])
    for (const block of blocks.filter((each) => each.kind === kind)) {
      console.log(`readme: ${block.file}:${block.line}`)
      const printed = await execute(block, place)
      const shown = shownOutput(block)
      const differs = asShown(printed, shown).some((line, at) => line !== shown[at])
      if (shown.length > 0 && differs) throw new Error(`README.md:${block.line} shows ${shown.join('\n')}`)
    }
  console.log('readme: every line held')
} catch (failure) {
  console.error(`readme: ${(failure as Error).message}`)
  process.exitCode = 1
} finally {
  rmSync(home, { recursive: true, force: true })
}
