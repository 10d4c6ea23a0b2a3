import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { withDevice } from '../../src/commands/status-command.js'
import {
  drawIdentifier,
  identifierOf,
  isOurMake,
  namedProcess,
  presenceOf,
  processesOfOthers,
} from '../../src/kernel/device-identity.js'
import { type ClientStatus, ownerAmong, type RunningClient } from '../../src/report/control.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

/** A folder as /sys/block, with a device of nbd. */
function devicesWith(index: number, files: Record<string, string>, devices = temporaryFolder()): string {
  mkdirSync(join(devices, `nbd${index}`))
  for (const [file, text] of Object.entries(files)) writeFileSync(join(devices, `nbd${index}`, file), text)
  return devices
}

const ours = { front: 'nbd', index: 1, identifier: drawIdentifier() } as const

describe('a device is known by its identifier, whatever its number', () => {
  it('while the kernel has it', () => {
    const devices = devicesWith(1, { pid: '12\n', backend: `${ours.identifier}\n` })
    expect(presenceOf(ours, devices)).toBe('there')
  })

  it('and when it is gone', () => {
    expect(presenceOf(ours, devicesWith(1, { backend: `${ours.identifier}\n` }))).toBe('gone')
    expect(presenceOf(ours, temporaryFolder())).toBe('gone')
  })

  it('and when another one has its number', () => {
    expect(presenceOf(ours, devicesWith(1, { pid: '12\n', backend: `${drawIdentifier()}\n` }))).toBe(
      'another',
    )
    expect(presenceOf(ours, devicesWith(1, { pid: '12\n', backend: '\n' }))).toBe('another')
    expect(presenceOf(ours, devicesWith(1, { pid: '12\n' }))).toBe('another')
  })

  it('but not when the kernel cannot be asked: nothing is given back for that', () => {
    const devices = devicesWith(1, { pid: '12\n' })
    mkdirSync(join(devices, 'nbd1', 'backend'))
    expect(() => presenceOf(ours, devices)).toThrow(/EISDIR/)
    rmSync(join(devices, 'nbd1', 'backend'), { recursive: true })
    expect(identifierOf(ours, devices)).toBe('')
    // Without /sys, as in a chroot.
    const hidden = join(temporaryFolder(), 'sys', 'block')
    for (const device of [ours, { front: 'ublk', index: 9_999, identifier: drawIdentifier('ublk') } as const])
      expect(() => presenceOf(device, hidden)).toThrow(/ENOENT/)
  })
})

it('a device is of our make when its identifier says so', () => {
  expect(isOurMake(drawIdentifier('nbd'))).toBe(true)
  expect(isOurMake(drawIdentifier('ublk'))).toBe(true)
  for (const other of [
    '',
    'backup',
    'rdmakit-',
    'rdmakit-ublk-0000000000000002',
    'not-rdmakit-0123456789abcdef',
  ])
    expect(isOurMake(other), other).toBe(false)
})

it('the kernel names a process for each device of nbd', () => {
  const devices = devicesWith(1, { pid: '12\n' })
  devicesWith(2, { pid: '13\n' }, devices)
  devicesWith(3, {}, devices)
  expect(namedProcess(ours, devices)).toBe(12)
  expect(namedProcess({ front: 'nbd', index: 3 }, devices)).toBeUndefined()
  expect(processesOfOthers(ours, devices)).toEqual(new Set([13]))
})

it('the owner of a device is the process whose device it is, not one that had its number before', () => {
  const client = (pid: number, target: string, identifier?: string, mode = 'attach') =>
    ({ pid, status: { mode, target, identifier } }) as unknown as RunningClient
  const before = client(1, '/dev/nbd1', 'rdmakit-a')
  const now = client(2, '/dev/nbd1', 'rdmakit-b')
  const other = client(3, '/dev/nbd2', 'rdmakit-b')
  const oldVersion = client(4, '/dev/nbd1')
  expect(ownerAmong([before, other, now], '/dev/nbd1', 'rdmakit-b')).toBe(now)
  expect(ownerAmong([before, other], '/dev/nbd1', 'rdmakit-b')).toBeUndefined()
  expect(ownerAmong([before, oldVersion], '/dev/nbd1', 'rdmakit-b')).toBe(oldVersion)
  expect(ownerAmong([client(5, '/dev/nbd1', 'rdmakit-b', 'serve')], '/dev/nbd1', 'rdmakit-b')).toBeUndefined()
})

it('status says of a client whether the kernel has its device, and not another one by that name', () => {
  const status = { mode: 'attach', target: '/dev/nbd1', identifier: ours.identifier } as ClientStatus
  const devices = devicesWith(1, { pid: '12\n', backend: `${ours.identifier}\n` })
  expect(withDevice(status, devices).device).toBe('there')
  writeFileSync(join(devices, 'nbd1', 'backend'), `${drawIdentifier()}\n`)
  expect(withDevice(status, devices).device).toBe('another')
  expect(withDevice(status, temporaryFolder()).device).toBe('gone')
  expect(withDevice({ ...status, mode: 'serve' }, devices)).not.toHaveProperty('device')
})
