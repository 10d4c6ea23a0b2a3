// node scripts/tiers/main.mjs test|ci [--only PART]…: runs a tier's parts and prints what each took. npm test and .ci/run
// are this; npm run soak has a program of its own (soak.mjs). A part that exceeds its budget is reported; at
// twice its budget it is a failure, on a machine that was otherwise idle; on a slower one than that of the budgets at so
// many times more (slowness.mjs). RDMAKIT_BUDGET=print: never.
import { spawnSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { tiers } from './parts.mjs'
import { results, runParts, top } from './run.mjs'

function usage(status) {
  const list = Object.entries(tiers).map(
    ([name, { parts, budget }]) => `  ${name} (${budget} s): ${parts.map((part) => part.name).join('; ')}`,
  )
  console[status === 0 ? 'log' : 'error'](
    [
      'usage: node scripts/tiers/main.mjs TIER [--only PART]…',
      'PART: what a part’s name holds',
      ...list,
    ].join('\n'),
  )
  process.exit(status)
}

let words
try {
  words = parseArgs({
    allowPositionals: true,
    options: { only: { type: 'string', multiple: true }, help: { type: 'boolean', short: 'h' } },
  })
} catch (error) {
  console.error(error.message)
  usage(2)
}
const { positionals, values } = words
if (values.help) usage(0)
const tier = tiers[positionals[0]]
if (tier === undefined || positionals.length > 1) usage(2)
const parts = tier.parts.filter(
  ({ name }) => values.only === undefined || values.only.some((text) => name.includes(text)),
)
if (parts.length === 0) usage(2)

// A part that breaks off must not leave the report of an earlier run to be counted as its own.
rmSync(results, { recursive: true, force: true })
const status = await runParts(positionals[0], parts, tier)
// "N passed, N failed" comes last.
const counted = spawnSync(process.execPath, ['scripts/reports/count-tests.mjs', 'test-results'], {
  cwd: top,
  stdio: 'inherit',
})
process.exit(status || (counted.status ?? 1))
