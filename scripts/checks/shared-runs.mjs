// node scripts/checks/shared-runs.mjs [--list] [--limit N] [FOLDER FOLDER]: counts the runs of six lines that two folders have
// in common. White space is folded; comment lines, lone braces and empty lines do not count. Without folders: of what
// the two software providers have in common, their native code and their native tests.
//   --list     prints each run's two places and its first line
//   --limit N  exits with 1 when a pair of folders has more than N runs
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

const kRun = 6
const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const pairs = [
  ['packages/verbs/native/iwarp', 'packages/verbs/native/shm'],
  ['test/native/iwarp', 'test/native/shm'],
]

const folded = (line) => line.trim().replace(/\s+/g, ' ')
const counts = (line) => line !== '' && !/^(\/\/.*|[{}]+;?)$/.test(line)

/** Each run of a folder's files, by its text: where it begins. */
function runsOf(folder) {
  const runs = new Map()
  for (const entry of readdirSync(join(top, folder), { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || !/\.(cc|h)$/.test(entry.name)) continue
    const path = join(entry.parentPath, entry.name)
    const lines = readFileSync(path, 'utf8')
      .split('\n')
      .map((line, index) => ({ text: folded(line), number: index + 1 }))
      .filter(({ text }) => counts(text))
    for (let at = 0; at + kRun <= lines.length; at++) {
      const text = lines
        .slice(at, at + kRun)
        .map((line) => line.text)
        .join('\n')
      if (!runs.has(text)) runs.set(text, `${relative(top, path)}:${lines[at].number}`)
    }
  }
  return runs
}

const given = process.argv.slice(2)
const list = given.includes('--list')
const limitAt = given.indexOf('--limit')
const limit = limitAt < 0 ? Number.POSITIVE_INFINITY : Number(given[limitAt + 1])
const folders = given.filter((word, at) => !word.startsWith('--') && (limitAt < 0 || at !== limitAt + 1))
if (Number.isNaN(limit) || ![0, 2].includes(folders.length)) {
  console.error('usage: shared-runs [--list] [--limit N] [FOLDER FOLDER]')
  process.exit(2)
}

for (const [one, other] of folders.length === 2 ? [folders] : pairs) {
  const there = runsOf(other)
  const common = [...runsOf(one)].filter(([text]) => there.has(text))
  console.log(`${common.length} runs of ${kRun} lines are common to ${one} and ${other}`)
  if (list)
    for (const [text, place] of common) console.log(`  ${place} ${there.get(text)}  ${text.split('\n')[0]}`)
  if (common.length > limit) {
    console.error(`more than ${limit}`)
    process.exitCode = 1
  }
}
