// How a program ends, for each class of error and for each status. Nothing but the class tells wrong usage (a server that
// stays out for good) from what may be mended while a program runs (a key file), so there is one class of each.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { EXIT, ExitError, exitStatusOf, InvalidInputError } from '@rdmakit/operator-kit'
import { ConnectionRejectedError, UsageError, VerbsError } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import { SwapServerError } from '../src/client/server-replies.js'
import { ConfigurationError } from '../src/protocol/configuration-error.js'
import { Refusal } from '../src/protocol/refusal.js'

describe('the exit status of a failure', () => {
  it.each<[string, unknown, number]>([
    ['UsageError', new UsageError('a bad option'), 64],
    ['InvalidInputError', new InvalidInputError('a bad size'), 64],
    ['ConfigurationError', new ConfigurationError('a bad file'), 78],
    ['ExitError', new ExitError('another process has the volume', EXIT.fenced), 79],
    ['VerbsError', new VerbsError('ETIMEDOUT', 'rdma_connect', 'iwarp://a:1', 'no answer'), 69],
    ['ConnectionRejectedError', new ConnectionRejectedError('iwarp://a:1', new Uint8Array()), 69],
    ['SwapServerError', new SwapServerError('EACCES', 'the key is wrong'), 77],
    ['Refusal', new Refusal('ENOSPC', 'too little'), 69],
    ['Error', new Error('anything'), 1],
    ['TypeError', new TypeError('a mistake in the program'), 1],
    ['a code that is a number', Object.assign(new Error('odd'), { code: 22 }), 1],
    ['a code that is not known', Object.assign(new Error('odd'), { code: 'EDOM' }), 1],
    ['what is no error', 'a text', 1],
  ])('of %s', (_, failure, status) => expect(exitStatusOf(failure)).toBe(status))
})

describe('wrong usage', () => {
  it('is of one class, and a wrong file is of it too', () => {
    expect(new ConfigurationError('a bad file')).toBeInstanceOf(UsageError)
    // Invalid input on a command line is no misuse of an API: it excludes no server for good.
    for (const other of [new InvalidInputError(''), new ExitError('', EXIT.usage), new Refusal('EINVAL', '')])
      expect(other).not.toBeInstanceOf(UsageError)
  })

  it.each(['swap-server', 'nbd-client'])('is of one class in the bundle of %s', (name) => {
    const dist = join(import.meta.dirname, '../../', name, 'dist')
    const files = ['cli.js', ...readdirSync(join(dist, 'cli')).map((file) => join('cli', file))]
    const text = files.map((file) => readFileSync(join(dist, file), 'utf8')).join('\n')
    for (const of of ['UsageError', 'ConfigurationError', 'ExitError'])
      expect([
        of,
        text.match(new RegExp(`class ${of}\\b|\\b${of}(\\$\\d+)? = class\\b`, 'g'))?.length,
      ]).toEqual([of, 1])
  })
})
