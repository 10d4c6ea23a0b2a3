import { describe, expect, it } from 'vitest'
import { chosenDevice } from '../../src/attach/attach-options.js'
import { blockName, devicePath, parseDevice } from '../../src/kernel/device-name.js'

describe('the name of a device', () => {
  it.each([
    ['/dev/nbd0', { front: 'nbd', index: 0 }],
    ['nbd15', { front: 'nbd', index: 15 }],
    ['/dev/ublkb3', { front: 'ublk', index: 3 }],
    ['ublkb3', { front: 'ublk', index: 3 }],
  ] as const)('%s says which driver has it', (text, name) => {
    expect(parseDevice(text)).toEqual(name)
    expect(devicePath(name)).toBe(`/dev/${blockName(name)}`)
    expect(parseDevice(blockName(name))).toEqual(name)
  })

  it.each(['/dev/sda', '/dev/nbd', '/dev/ublkc0', 'nbd-1', '/dev/nbd0p1', '/tmp/nbd0', ''])(
    '"%s" is refused',
    (text) => expect(() => parseDevice(text)).toThrow(/is not a device name; write \/dev\/nbd0/),
  )

  it('must be of the driver that was chosen', () => {
    expect(chosenDevice({})).toBeUndefined()
    expect(chosenDevice({ device: '/dev/nbd1' })).toEqual({ front: 'nbd', index: 1 })
    expect(chosenDevice({ device: '/dev/ublkb1', front: 'ublk' })).toEqual({ front: 'ublk', index: 1 })
    expect(() => chosenDevice({ device: '/dev/ublkb1' })).toThrow(
      /\/dev\/ublkb1 is not a device of --front nbd/,
    )
    expect(() => chosenDevice({ device: '/dev/nbd1', front: 'ublk' })).toThrow(
      /\/dev\/nbd1 is not a device of --front ublk/,
    )
  })
})
