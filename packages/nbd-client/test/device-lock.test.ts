import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { lockDevice } from '../src/device-lock.js'
import { closeDescriptor, lockFile } from '../src/kernel.js'

let folder: string
let device: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'nbd-device-'))
  device = join(folder, 'nbd0')
  writeFileSync(device, '')
})
afterEach(() => rmSync(folder, { recursive: true }))

it('keeps others from the device until it is ended', async () => {
  const unlock = await lockDevice(device)
  expect(() => lockFile(device)).toThrow(expect.objectContaining({ code: 'EBUSY' }))
  unlock()
  closeDescriptor(lockFile(device))
})

it('waits for whoever looks at the device', async () => {
  const other = lockFile(device)
  const locking = lockDevice(device, 60_000)
  closeDescriptor(other)
  const unlock = await locking
  expect(() => lockFile(device)).toThrow(expect.objectContaining({ code: 'EBUSY' }))
  unlock()
})

it('goes on without it when another one keeps it, or it is not there', async () => {
  const other = lockFile(device)
  const unlock = await lockDevice(device, 1)
  unlock()
  expect(() => lockFile(device)).toThrow(expect.objectContaining({ code: 'EBUSY' }))
  closeDescriptor(other)
  const none = join(folder, 'nbd1')
  const nothing = await lockDevice(none)
  nothing()
  expect(existsSync(none)).toBe(false)
})
