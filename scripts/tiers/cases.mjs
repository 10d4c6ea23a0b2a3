// How many tests a part ran, from the reports that it left in test-results/.
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { results } from './run.mjs'

/** Of vitest's JSON reports. */
export const vitestCases =
  (...names) =>
  () =>
    names.reduce((sum, name) => {
      const path = join(results, name)
      return existsSync(path) ? sum + JSON.parse(readFileSync(path, 'utf8')).numTotalTests : sum
    }, 0)

/** Of ctest's JUnit report: its tests, each a program's run. */
export const nativeCases = (name) => () =>
  Number(/<testsuite[^>]*\btests="(\d+)"/s.exec(readFileSync(join(results, name), 'utf8'))?.[1])

/** Of a file that holds a number. */
export const numberIn = (name) => () => Number(readFileSync(join(results, name), 'utf8'))
