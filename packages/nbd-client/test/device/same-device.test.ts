import { expect, it } from 'vitest'
import type { AttachOptions } from '../../src/attach/attach-options.js'
import { checkSame } from '../../src/attach/same-device.js'
import type { KeptVolume } from '../../src/upgrade/volume-json.js'

const device = { front: 'nbd', index: 3, identifier: 'rdmakit-0123456789abcdef', connections: 2 } as const
const kept: KeptVolume = { size: 2 ** 30, replicas: 2, slabSize: 2 ** 26, servers: [], device }
const options = { size: 2 ** 30, replicas: 2, thin: false, checksums: true, front: 'nbd' } as AttachOptions

const check = (given: Partial<AttachOptions>, found: Partial<KeptVolume> = {}) =>
  checkSame({ ...options, ...given }, '/run/rdmakit/swap0', { ...kept, ...found }, device)

it('a device that is there is taken over by a command with the same options', () => {
  expect(check({})).toBe('/dev/nbd3')
  expect(check({ device: '/dev/nbd3' })).toBe('/dev/nbd3')
  expect(check({ thin: true }, { thin: true })).toBe('/dev/nbd3')
  expect(check({}, { compressed: true })).toBe('/dev/nbd3')
})

it.each<[string, Partial<AttachOptions>, Partial<KeptVolume>, string]>([
  ['another size', { size: 2 ** 31 }, {}, '--size 1073741824'],
  ['other replicas', { replicas: 1 }, {}, '--replicas 2'],
  ['memory as it is written', { thin: true }, {}, 'memory allocated at the start'],
  ['memory from the start', {}, { thin: true }, 'memory allocated when written (--thin)'],
  ['another driver', { front: 'ublk' }, {}, '--front nbd'],
  ['another number', { device: '/dev/nbd4' }, {}, '--device /dev/nbd3'],
])('and refused with the old value, and what to do, by one with %s', (_, given, found, told) => {
  expect(() => check(given, found)).toThrow(
    expect.objectContaining({
      code: 'EINVAL',
      message: `/run/rdmakit/swap0 is of /dev/nbd3, which is attached, with ${told}; restore the old value, or detach /dev/nbd3 and attach it again with the new one`,
    }),
  )
})

it('and by one without the checksums that its compressed pages need', () => {
  expect(() => check({ checksums: false }, { compressed: true })).toThrow(/leave out --no-checksum/)
})
