// Native code's validation of its arguments. JavaScript's own checks come first; another addon has none, and a handle
// of the wrong kind would be a memory error.
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Context, type MemoryRegion, openDevice, type ProtectionDomain } from '../src/index.js'
import { type Handle, native } from '../src/native.js'

let context: Context
let protectionDomain: ProtectionDomain
let region: MemoryRegion
beforeEach(async () => {
  context = openDevice('iwarp0', 'iwarp')
  protectionDomain = context.allocateProtectionDomain()
  region = await protectionDomain.allocateMemoryRegion(4096)
})
afterEach(() => context.close())

describe('a handle', () => {
  it('is of the kind that is wanted', () => {
    const queue = context.createCompletionQueue({ entries: 16 })
    expect(native.mrInfo(region.handle).length).toBe(4096)
    for (const { handle } of [context, protectionDomain, queue])
      expect(() => native.mrInfo(handle)).toThrow('expected the handle of a memory region')
    for (const { handle } of [context, region, queue])
      expect(() => native.regMr(handle, new ArrayBuffer(64), 0, 64, 0)).toThrow(
        'expected the handle of a protection domain',
      )
    for (const { handle } of [context, region, protectionDomain])
      expect(() => native.createCompletionArray(handle, 4)).toThrow(/expected the handle of/)
  })

  it.each([
    ['nothing', undefined],
    ['an object', {}],
    ['a number', 7],
  ])('is not %s', (_, other) => {
    expect(() => native.mrInfo(other as unknown as Handle)).toThrow('expected the handle of a memory region')
  })

  it('of what is closed is of no use, and may be closed again', () => {
    const { handle } = region
    region.close()
    expect(() => native.mrInfo(handle)).toThrow('it is closed')
    expect(() => native.mrBuffer(handle, true)).toThrow('it is closed')
    native.close(handle)
  })
})

describe('memory', () => {
  it.each([
    ['begins behind its buffer', 65, 1],
    ['ends behind its buffer', 32, 33],
    ['is longer than its buffer', 0, 65],
    ['is nothing', 64, 0],
  ])('that %s is not registered', (_, offset, length) => {
    const register = () => native.regMr(protectionDomain.handle, new ArrayBuffer(64), offset, length, 0)
    expect(register).toThrow('it has no bytes there')
  })
})

describe('slots', () => {
  it.each([
    [0, 5],
    [1, 4],
    [4, 1],
    [5, 0],
    [2, 2 ** 32 - 1],
  ])('from %i on are not %i', (first, count) => {
    const sendQueue = context.createCompletionQueue({ entries: 16 })
    const queuePair = protectionDomain.createQueuePair({ sendQueue })
    const many = 'there are not that many slots'
    expect(() => queuePair.createSendSlots(4, [region]).post(first, count)).toThrow(many)
    expect(() => queuePair.createReceiveSlots(4, [region]).post(first, count)).toThrow(many)
  })
})
