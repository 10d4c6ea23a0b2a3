import { expect, test } from 'vitest'
import { parseCommandLine, SUITES } from '../options.js'

const line = (text: string) => parseCommandLine(text === '' ? [] : text.split(' '))
const options = (text: string) => {
  const parsed = line(text)
  if (parsed.kind !== 'run') throw new Error(JSON.stringify(parsed))
  return parsed.options
}

test('without arguments all suites run, five rounds each', () => {
  expect(options('')).toEqual({
    ...{ suites: SUITES, rounds: 5, json: false, quick: false },
    ...{ only: undefined, against: undefined },
  })
})

test('suites run once, in the order that was asked for', () => {
  expect(options('nbd verbs nbd').suites).toEqual(['nbd', 'verbs'])
})

test('options', () => {
  expect(options('ring --rounds 7 --json --only 64.B').only).toEqual(/64.B/i)
  expect(options('ring --rounds 7 --json')).toMatchObject({ rounds: 7, json: true })
  expect(options('ring --against ../before').against).toBe('../before')
})

test('quick is one round', () => {
  expect(options('--quick')).toMatchObject({ quick: true, rounds: 1 })
})

test('quick is without guests, unless they are asked for by name', () => {
  expect(options('--quick').suites).toEqual(SUITES.filter((suite) => suite !== 'lab'))
  expect(options('lab --quick').suites).toEqual(['lab'])
})

test('the lab is left out where it lacks an option, and refused when it was asked for by name', () => {
  expect(options('--against ../before').suites).not.toContain('lab')
  expect(options('--only shm').suites).not.toContain('lab')
  expect(line('lab --against ../before')).toEqual({
    kind: 'error',
    message: 'lab does not support --against: leave one of the two out',
  })
})

test('help wins over suites', () => {
  expect(line('ring --help').kind).toBe('help')
  expect(line('-h').kind).toBe('help')
})

test.each([
  [
    'rign',
    'unknown suite "rign"; known: micro, verbs, ring, ring-default, rpc, connections, parameter-server, nbd, curves, lab',
  ],
  ['--qiuck', "Unknown option '--qiuck'"],
  ['--rounds 0', '--rounds is a whole number from 1 on, not "0"'],
  ['--rounds 1.5', '--rounds is a whole number from 1 on, not "1.5"'],
  ['--rounds 5 --quick', '--quick is one round: leave --rounds out'],
  ['--only (', '--only is a regular expression, and "(" is none'],
])('%s is refused with one line', (text, message) => {
  expect(line(text)).toEqual({ kind: 'error', message })
})
