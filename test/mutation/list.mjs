// The mutations of mutations/*.mjs, and what must hold of them whatever the sources become.
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { namedTest } from './named-test.mjs'

/**
 * A small fault.
 * @typedef {object} Mutation
 * @property {string} name
 * @property {string} file in the checkout
 * @property {string} find there once
 * @property {string} replace what stands in its place
 * @property {string} why the fault, in a sentence
 * @property {string[]} tests to try, in this order (named-test.mjs)
 * @property {string} area the file in mutations/ that has it
 */

const here = dirname(fileURLToPath(import.meta.url))

/** @returns {Promise<Mutation[]>} in an order in which neighbours share what has to be compiled */
export async function loadMutations() {
  const all = []
  for (const file of readdirSync(join(here, 'mutations')).sort()) {
    const { mutations } = await import(`./mutations/${file}`)
    const area = file.replace(/\.mjs$/, '')
    all.push(...mutations.map((each) => ({ ...each, area })))
  }
  return all
}

/** The text with the fault. @throws {Error} it does not stand there exactly once */
export function mutated(text, { file, find, replace }) {
  const [before, ...after] = text.split(find)
  if (after.length !== 1) throw new Error(`what it replaces is ${after.length} times in ${file}`)
  return before + replace + after[0]
}

/**
 * @param {Mutation[]} mutations
 * @param {string} top the checkout
 * @returns {string[]} what is wrong, a line each
 */
export function mistakes(mutations, top) {
  const wrong = []
  const names = new Set()
  const readme = readFileSync(join(here, 'README.md'), 'utf8')
  for (const mutation of mutations) {
    const say = (what) => wrong.push(`${mutation.area}: ${mutation.name}: ${what}`)
    const { name, find, replace, why, tests } = mutation
    if (!/^[a-z0-9]+(-[a-z0-9]+)*$/.test(name)) say('its name is not in kebab-case')
    if (names.has(name)) say('another one has its name')
    names.add(name)
    if (find === replace) say('it changes nothing')
    if (!why?.endsWith('.')) say('it does not say in a sentence which fault it is')
    if (!readme.includes(`| ${name} |`)) say('the table of README.md does not have it (--table)')
    try {
      mutated(readFileSync(join(top, mutation.file), 'utf8'), mutation)
    } catch (failure) {
      say(failure.code === 'ENOENT' ? `there is no ${mutation.file}` : failure.message)
    }
    if (!(tests?.length > 0)) say('it names no test')
    for (const test of tests ?? []) {
      try {
        namedTest(test, top)
      } catch (failure) {
        say(failure.message)
      }
    }
  }
  return wrong
}
