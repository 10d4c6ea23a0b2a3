// Runs parts one after the other, with their output as it comes, and prints what each took beside its budget.
import { spawn } from 'node:child_process'
import { createWriteStream, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { machineIsIdle } from './pressure.mjs'
import { slowness } from './slowness.mjs'

export const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
export const results = join(top, 'test-results')

/**
 * @typedef {object} Part
 * @property {string} name
 * @property {string[]} command
 * @property {number} budget seconds on two quiet processors of a machine with nothing installed
 * @property {Record<string, string>} [env]
 * @property {() => number} [cases] how many tests it ran, from its reports
 * @property {boolean} [first] what fails here leaves nothing to run
 *
 * @typedef {Part & { seconds: number, status: number | string, idle: boolean | undefined, slowness: number, count: number, output: string }} Ran
 */

/** A part that hangs is ended after this many times its budget, and never before this many seconds. */
const HANG_FACTOR = 6
const HANG_LEAST_S = 600
/** On a machine that is otherwise idle, and as fast as that of the budgets: more than this many times its budget fails a part. */
const FAIL_FACTOR = 2
/** Whoever reads the end of a run's output sees why it failed: so many lines of each part that did, at most. */
const LAST_LINES = 30

/**
 * Runs a part to its end, whatever that is. With a `log` its output goes there too, and is returned.
 * @param {Part & { hang?: number }} part hang: seconds after which it is ended
 * @returns {Promise<{ status: number | string, seconds: number, output: string }>} its exit status, or what ended it
 */
export async function executePart({ command, env, budget, hang }, log) {
  const begin = performance.now()
  const [program, ...args] = command
  // A group of its own, so that what hangs is ended with all its children.
  const child = spawn(program, args, {
    cwd: top,
    env: { ...process.env, ...env },
    stdio: ['ignore', log === undefined ? 'inherit' : 'pipe', log === undefined ? 'inherit' : 'pipe'],
    detached: true,
  })
  const kept = log === undefined ? undefined : createWriteStream(log)
  let output = ''
  for (const stream of ['stdout', 'stderr'])
    child[stream]?.setEncoding('utf8').on('data', (text) => {
      process[stream].write(text)
      kept?.write(text)
      output += text
    })
  const signalGroup = (signal) => {
    try {
      process.kill(-child.pid, signal)
    } catch {}
  }
  const stop = () => {
    signalGroup('SIGKILL')
    process.exit(130)
  }
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, stop)
  let hung = false
  const limit = hang ?? Math.max(HANG_LEAST_S, HANG_FACTOR * budget)
  const timer = setTimeout(() => {
    hung = true
    signalGroup('SIGKILL')
  }, limit * 1000)
  const status = await new Promise((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code, signal) => resolve(code ?? signal))
  })
  clearTimeout(timer)
  kept?.end()
  for (const signal of ['SIGINT', 'SIGTERM']) process.off(signal, stop)
  const seconds = (performance.now() - begin) / 1000
  return { status: hung ? `ended after ${limit} s` : status, seconds, output }
}

/** @param {Part} part @returns {Promise<Ran>} */
export async function runPart(part) {
  const before = { idle: await machineIsIdle(), slowness: slowness() }
  console.log(`\n== ${part.name} (budget ${part.budget} s)`)
  // A terminal is left to the part itself, for its colours; there everything can be read.
  const log = process.stdout.isTTY
    ? undefined
    : join(results, 'parts', `${part.name.replaceAll(/\W+/g, '-')}.log`)
  const { status, seconds, output } = await executePart(part, log)
  const idle = before.idle && (await machineIsIdle())
  const slow = (before.slowness + slowness()) / 2
  let count = 0
  try {
    count = part.cases?.() ?? 0
  } catch (error) {
    console.error(`${part.name}: its report cannot be read: ${error.message}`)
  }
  return { ...part, status, seconds, idle, slowness: slow, count, output }
}

/** @param {Part[]} parts @param {string} tier @returns {Promise<number>} the exit status */
export async function runParts(tier, parts, { budget: total }) {
  mkdirSync(join(results, 'parts'), { recursive: true })
  const ran = []
  for (const part of parts) {
    ran.push(await runPart(part))
    if (part.first && ran.at(-1).status !== 0) break
  }
  writeFileSync(
    join(results, 'parts', `${tier}.json`),
    JSON.stringify(
      ran.map(({ name, seconds, budget, count, status, idle, slowness }) => ({
        name,
        seconds: Math.round(seconds),
        budget,
        cases: count,
        status,
        idle,
        slowness,
      })),
      undefined,
      2,
    ),
  )
  console.log(`\n${table(ran, total)}`)
  for (const { name, status, output } of ran)
    if (status !== 0 && output !== '')
      console.log(
        `\n== ${name} FAILED; its last lines:\n${output.trimEnd().split('\n').slice(-LAST_LINES).join('\n')}\n`,
      )
  return verdict(ran)
}

/** Past its budget is told; at twice of it, on a machine that was otherwise idle, it is a failure: twice as slow, 4 times. */
function remark({ status, seconds, budget, idle, slowness }) {
  if (status !== 0) return `FAILED (${status})`
  if (seconds <= budget) return ''
  const over = `${(seconds / budget).toFixed(1)} times its budget`
  const machine = `a machine ${slowness.toFixed(1)} times as slow as its own`
  if (seconds <= FAIL_FACTOR * slowness * budget || process.env.RDMAKIT_BUDGET === 'print')
    return `over its budget: ${over}, on ${machine}`
  return idle ? `FAILED: ${over}, on ${machine} and idle` : `${over}; the machine had other work`
}

const verdict = (ran) => (ran.some((part) => remark(part).startsWith('FAILED')) ? 1 : 0)

function table(ran, total) {
  const seconds = ran.reduce((sum, part) => sum + part.seconds, 0)
  const cases = ran.reduce((sum, part) => sum + part.count, 0)
  const rows = [
    ['part', 'seconds', 'budget', 'cases', ''],
    ...ran.map((part) => [
      part.name,
      part.seconds.toFixed(0),
      String(part.budget),
      part.count > 0 ? String(part.count) : '',
      remark(part),
    ]),
    ['all', seconds.toFixed(0), String(total), String(cases), seconds > total ? 'over its budget' : ''],
  ]
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)))
  return rows
    .map((row) =>
      row
        .map((cell, column) =>
          column === 0 || column === 4 ? cell.padEnd(widths[column]) : cell.padStart(widths[column]),
        )
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}
