// test-results/mutation.json: what became of each mutation, and the table of it.
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { namedTest, textOf } from './named-test.mjs'

/**
 * @typedef {object} Result
 * @property {string} key of the sources and tests that it is about
 * @property {'caught' | 'survived' | 'error'} outcome error: it does not compile, or no test of it can be used
 * @property {string} [by] the test or the tier that caught it
 * @property {string} [tier] which runs that test
 * @property {string} [how] lines of the test that say what it saw
 * @property {number} seconds from the first build to the outcome
 */

const README = join(dirname(fileURLToPath(import.meta.url)), 'README.md')
const BEGIN = '<!-- table -->'
const END = '<!-- end of the table -->'

export class Results {
  /** @type {Record<string, Result>} */
  #mutations = {}
  /** key of an unmutated test that has passed, to seconds */
  #proved = {}

  /** @param {string} file @param {boolean} fresh nothing of it counts */
  constructor(file, fresh) {
    this.file = file
    if (fresh || !existsSync(file)) return
    const { mutations, proved } = JSON.parse(readFileSync(file, 'utf8'))
    this.#mutations = mutations
    this.#proved = proved
  }

  get(name) {
    return this.#mutations[name]
  }

  set(name, result) {
    this.#mutations[name] = result
    this.#write()
  }

  /** @returns {number | undefined} seconds that it took */
  proved(key) {
    return this.#proved[key]
  }

  prove(key, seconds) {
    this.#proved[key] = seconds
    this.#write()
  }

  #write() {
    mkdirSync(dirname(this.file), { recursive: true })
    writeFileSync(
      this.file,
      `${JSON.stringify({ mutations: this.#mutations, proved: this.#proved }, null, 2)}\n`,
    )
  }
}

function digest(...texts) {
  const hash = createHash('sha256')
  for (const text of texts) hash.update(text).update('\0')
  return hash.digest('hex').slice(0, 24)
}

/** What the outcome of a mutation depends on, as far as it is looked at: its text, its file and its tests. */
export function keyOf({ file, find, replace, tests }, top) {
  const texts = tests.map((test) => textOf(namedTest(test, top), top))
  return digest(readFileSync(join(top, file), 'utf8'), find, replace, ...texts)
}

/** What a test's passing depends on: it, and the product. */
export function proofKey(test, sources, top) {
  return digest(sources, textOf(test, top))
}

/** Updates the table of README.md. */
export function writeTable(mutations, results) {
  const lines = ['| mutation | the fault | caught by | in |', '| --- | --- | --- | --- |']
  for (const { name, why } of mutations) {
    const { outcome, by, tier } = results.get(name) ?? {}
    const caught = outcome === 'caught' ? by : (outcome ?? 'not run')
    lines.push(`| ${name} | ${why} | ${caught} | ${tier ?? ''} |`)
  }
  const [before, rest] = readFileSync(README, 'utf8').split(BEGIN)
  const [, after] = rest.split(END)
  writeFileSync(README, [before, BEGIN, '\n', lines.join('\n'), '\n', END, after].join(''))
}
