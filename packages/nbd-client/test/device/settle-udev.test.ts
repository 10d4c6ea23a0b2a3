import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { settleUdev } from '../../src/kernel/settle-udev.js'

let folder: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'nbd-udev-'))
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(folder, { recursive: true })
})

it('waits for udev', async () => {
  // Long enough that who does not wait is there before it.
  const settled = join(folder, 'settled')
  const script = `#!/bin/sh\n[ "$1" = settle ] && sleep 0.2 && : >'${settled}'\n`
  writeFileSync(join(folder, 'udevadm'), script, { mode: 0o700 })
  vi.stubEnv('PATH', `${folder}:${process.env.PATH}`)
  await settleUdev()
  expect(existsSync(settled)).toBe(true)
})

it('goes on where there is none, or it does not answer', async () => {
  vi.stubEnv('PATH', folder)
  expect(await settleUdev()).toBeUndefined()
  const asked = join(folder, 'asked')
  writeFileSync(join(folder, 'udevadm'), `#!/bin/sh\n: >'${asked}'\nexit 1\n`, { mode: 0o700 })
  expect(await settleUdev()).toBeUndefined()
  expect(existsSync(asked)).toBe(true)
})
