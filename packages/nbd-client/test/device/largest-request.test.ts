import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { allowLargeRequests, restoreRequests } from '../../src/kernel/largest-request.js'

let devices: string
let size: string

beforeEach(() => {
  devices = mkdtempSync(join(tmpdir(), 'rdmakit-block-'))
  mkdirSync(join(devices, 'nbd3', 'queue'), { recursive: true })
  size = join(devices, 'nbd3', 'queue', 'max_sectors_kb')
})

afterEach(() => rmSync(devices, { recursive: true }))

test.each([
  { there: 128, while: 512, after: 128 },
  // a process before this one was killed
  { there: 512, while: 512, after: 128 },
  // chosen by another program
  { there: 64, while: 64, after: 64 },
  { there: 1280, while: 1280, after: 1280 },
])('a device of $there KiB a request has $while while it is attached, then $after', (sizes) => {
  writeFileSync(size, `${sizes.there}\n`)
  allowLargeRequests(3, devices)
  expect(Number(readFileSync(size, 'utf8'))).toBe(sizes.while)
  restoreRequests(3, devices)
  expect(Number(readFileSync(size, 'utf8'))).toBe(sizes.after)
})

test('a device without the setting is left as it is', () => {
  expect(() => allowLargeRequests(3, devices)).not.toThrow()
  expect(() => restoreRequests(3, devices)).not.toThrow()
})
