// How a program ends: each status, and each code of a failure. What classes of errors come to is in swap-server's tests.
import { describe, expect, it } from 'vitest'
import { EXIT, ExitError, exitStatusOf } from '../src/command-line/exit-status.js'
import { InvalidInputError } from '../src/command-line/invalid-input-error.js'

describe('the exit status of a failure', () => {
  it('is that of wrong usage for what somebody typed', () =>
    expect(exitStatusOf(new InvalidInputError('a bad size'))).toBe(EXIT.usage))

  it.each(Object.entries(EXIT))('is %s (%d) where the failure says so', (_, status) => {
    expect(exitStatusOf(new ExitError('said', status))).toBe(status)
    expect(exitStatusOf(Object.assign(new Error('said'), { exitStatus: status }))).toBe(status)
  })

  it.each<[number, string[]]>([
    [64, ['EINVAL']],
    [69, ['ECONNREFUSED', 'ECONNRESET', 'ETIMEDOUT', 'EHOSTUNREACH', 'ENOTFOUND', 'ENETUNREACH']],
    [69, ['ENOSPC', 'EUSERS', 'EPROTO']],
    [71, ['ENODEV', 'EADDRNOTAVAIL', 'ENOMEM', 'EMFILE', 'ENOPKG']],
    [73, ['EBUSY', 'EADDRINUSE', 'EEXIST']],
    [77, ['EPERM', 'EACCES']],
    [78, ['ENOKEY']],
  ])('is %d for %j', (status, codes) => {
    for (const code of codes) expect([code, exitStatusOf({ code })]).toEqual([code, status])
  })
})
