import { EXIT } from '@rdmakit/operator-kit'
import { describe, expect, it } from 'vitest'
import { type DetachFacts, planDetach } from '../../src/detach/detach-plan.js'

/** Facts of a device that is unused and has no process. */
const plan = (facts: Partial<DetachFacts>) =>
  planDetach({
    path: '/dev/nbd1',
    device: 'there',
    ours: true,
    owner: undefined,
    silent: [],
    uses: [],
    swapped: undefined,
    force: false,
    ...facts,
  })
const mount = { kind: 'mount', on: 'nbd1', by: '/srv' } as const
const refusal = (facts: Partial<DetachFacts>) => {
  try {
    return plan(facts)
  } catch (failure) {
    const { message, status } = failure as Error & { status: number }
    return { message, status }
  }
}

describe('a device is detached', () => {
  it('by the process that has it, which turns its swap off', () => {
    expect(plan({ owner: 7 })).toBe('ask')
    expect(plan({ owner: 7, swapped: 1024 })).toBe('ask')
    expect(plan({ owner: 7, uses: [mount], force: true })).toBe('ask')
  })

  it('here, when it has no process and nobody uses it', () => {
    expect(plan({})).toBe('end')
    expect(plan({ swapped: 0 })).toBe('end')
    expect(plan({ device: 'left' })).toBe('remove')
  })

  it.each([
    ['pages that nobody has', { swapped: 4 }],
    ['somebody who uses it', { uses: [mount] }],
    ['a process that hangs', { silent: [7] }],
  ])('with --force from %s', (_, facts) => {
    expect(plan({ ...facts, force: true })).toBe('pull')
  })

  it('not, when it is not there, whatever is said', () => {
    for (const force of [false, true])
      expect(refusal({ device: 'gone', force })).toMatchObject({
        message: expect.stringContaining('is not attached'),
        status: EXIT.failed,
      })
  })

  it.each(['there', 'left'] as const)('not, when another program has made it: %s', (device) => {
    expect(refusal({ ours: false, device })).toMatchObject({
      message: expect.stringContaining('another program'),
      status: EXIT.taken,
    })
    expect(plan({ ours: false, device, force: true })).toBe(device === 'there' ? 'end' : 'remove')
  })

  it('not, while somebody uses it, whoever has it', () => {
    for (const owner of [undefined, 7])
      expect(refusal({ owner, uses: [mount] })).toMatchObject({
        message: expect.stringContaining('is in use: nbd1 is mounted on /srv'),
        status: EXIT.taken,
      })
  })

  it('not, while a process that does not answer may have it', () => {
    expect(refusal({ silent: [7] })).toMatchObject({
      message: expect.stringContaining('process 7 does not answer, and may hold it'),
    })
    expect(refusal({ silent: [7, 8] })).toMatchObject({
      message: expect.stringContaining('processes 7 and 8 do not answer, and may hold it'),
      status: EXIT.unavailable,
    })
  })

  it('not, while only its next process can bring its pages back', () => {
    expect(refusal({ swapped: 4 })).toMatchObject({
      message: expect.stringContaining('only its next nbd-client can bring back'),
      status: EXIT.taken,
    })
  })
})
