// docs/soak.md: a row for each soak, newest first, and what the last one did part by part.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus, release, totalmem } from 'node:os'

const HEAD = `# Soaks

Written by \`npm run soak\` ([testing.md](testing.md)). Faults are what a trial did to what swaps: a process killed, a link
cut, a server stopped, memory asked back. A stall is the longest step of a program that swaps.

| date | commit | minutes | seeds | machine | parts | failed | faults injected | wrong pages | longest stall |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
`
const LAST = '\n## The last one\n'

const sum = (values) => values.reduce((all, value) => all + value, 0)

/** What the reports of one part come to. */
function factsOf(saw) {
  return {
    faults: sum(
      saw.map(({ faults, restarts }) =>
        Array.isArray(faults) ? faults.length : Array.isArray(restarts) ? restarts.length : 0,
      ),
    ),
    wrong: sum(saw.map(({ wrongPages = 0, verifyErrors = 0 }) => wrongPages + verifyErrors)),
    stall: Math.max(
      0,
      ...saw.map(({ longestStall = 0, longestStep = 0, longestStalls = {} }) =>
        Math.max(longestStall, longestStep, ...Object.values(longestStalls)),
      ),
    ),
    pages: sum(saw.map(({ pagesIn = 0, pagesOut = 0 }) => pagesIn + pagesOut)),
  }
}

const row = (...cells) => `| ${cells.join(' | ')} |`
const seconds = (value) => (value === 0 ? '' : `${value.toFixed(1)} s`)
const many = (value) => value.toLocaleString('en-US')

/** @returns the table of the parts, which is also printed */
export function writeSoakReport({ commit, changed, seed, began, ran }, file) {
  const all = factsOf(ran.flatMap(({ saw }) => saw))
  const failed = ran.filter(({ status }) => status !== 0)
  const machine = `${cpus().length} × ${cpus()[0]?.model.trim()}, ${Math.round(totalmem() / 2 ** 30)} GiB, Linux ${release()}`
  const seeds = [...new Set(ran.map((part) => part.seed))]
  const summary = row(
    began.slice(0, 10),
    changed ? `${commit} and changes` : commit,
    Math.round(sum(ran.map((part) => part.seconds)) / 60),
    seeds.length > 1 ? `${seed} to ${seeds.at(-1)}` : seed,
    machine,
    ran.length,
    failed.length,
    all.faults,
    all.wrong,
    seconds(all.stall) || '–',
  )
  const table = [
    row('part', 'seed', 'seconds', 'status', 'faults', 'wrong pages', 'longest stall', 'pages in and out'),
    row(...Array.from({ length: 8 }, () => '---')),
    ...ran.map((part) => {
      const { faults, wrong, stall, pages } = factsOf(part.saw)
      const trial = part.saw.length > 0
      return row(
        part.name,
        part.seed,
        part.seconds,
        part.status === 0 ? 'held' : `FAILED (${part.status})`,
        ...(trial ? [faults, wrong, seconds(stall), many(pages)] : ['', '', '', '']),
      )
    }),
  ].join('\n')
  const before = existsSync(file) ? readFileSync(file, 'utf8') : ''
  const rows = before
    .slice(0, before.includes(LAST) ? before.indexOf(LAST) : undefined)
    .split('\n')
    .filter((line) => /^\| \d{4}-/.test(line))
  writeFileSync(file, `${HEAD}${[summary, ...rows].join('\n')}\n${LAST}\n${table}\n`)
  return table
}
