import protobuf from 'protobufjs'
import { expect, it } from 'vitest'

const LARGEST = '18446744073709551615'

/** A message with one 64-bit field, of another user of protobufjs in this process. */
const { root } = protobuf.parse('syntax = "proto3"; message Counter { uint64 value = 1; }')
const Counter = root.lookupType('Counter')
const decoded = () => {
  const bytes = Counter.encode(Counter.fromObject({ value: LARGEST })).finish()
  return String(Counter.toObject(Counter.decode(bytes)).value)
}

it('64-bit fields of other messages of the process keep their precision', async () => {
  const before = protobuf.util.Long
  expect(decoded()).toBe(LARGEST)
  const { control } = await import('../../src/protocol/messages.js')
  await import('@rdmakit/swap-server')
  await import('@rdmakit/nbd-client')
  expect(protobuf.util.Long).toBe(before)
  expect(decoded()).toBe(LARGEST)
  // Ours are numbers all the same.
  const address = 2 ** 47 - 4096
  const slab = control.Slab.decode(control.Slab.encode({ id: 1, address, length: 2 ** 40 }).finish())
  expect(slab).toMatchObject({ id: 1, address, length: 2 ** 40 })
  expect(new control.Slab().address).toBe(0)
  expect(control.Free.decode(control.Free.encode({ ids: [1, 2 ** 40] }).finish()).ids).toEqual([1, 2 ** 40])
})
