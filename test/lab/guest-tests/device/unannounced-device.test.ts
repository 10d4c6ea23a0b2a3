import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { lender } from '../lender.js'

/** Names that the kernel's devices have, of whatever process. Of ublk only the driver knows them: their numbers here. */
function identifiers(front: string): string[] {
  if (front === 'ublk') return readdirSync('/dev').filter((name) => name.startsWith('ublkc'))
  return readdirSync('/sys/block').flatMap((name) => {
    try {
      return [readFileSync(`/sys/block/${name}/backend`, 'utf8').trim()]
    } catch {
      return []
    }
  })
}

/** Takes 45 s more, of the same decisions. */
const ofUblk = process.env.RDMAKIT_TIER === 'soak' ? ['ublk'] : []

// Between the kernel's answer that the device is there and the record of its number.
describe.each(['nbd', ...ofUblk])(
  'nbd-client attach --front %s --state that ends when the kernel has just made the device',
  (front) => {
    const shell = new LocalShell()
    const folder = mkdtempSync(join(tmpdir(), 'unannounced-'))
    const state = join(folder, 'state')
    const client = ['node', 'packages/nbd-client/dist/cli.js']
    let attach: string[]
    let before: string[]

    /** In the place of volume.json's replacement by the one that names the device. */
    const whenConnected = (how: string) => {
      const preload = join(folder, 'preload.cjs')
      writeFileSync(
        preload,
        `const fs = require('node:fs')
       const { renameSync } = fs
       fs.renameSync = (from, to) => {
         if (to.endsWith('volume.json') && fs.readFileSync(from, 'utf8').includes('"device"')) { ${how} }
         renameSync(from, to)
       }
       require('node:module').syncBuiltinESMExports()`,
      )
      return { NODE_OPTIONS: `--require=${preload}` }
    }

    beforeAll(async () => {
      const { uri } = await lender()
      attach = [...client, 'attach', '--server', uri, '--size', '16M', '--state', state, '--front', front]
      before = identifiers(front)
    })

    afterAll(() => rmSync(folder, { recursive: true }))

    test('by SIGKILL leaves a device that the next start ends', async () => {
      const killed = await shell.exec(attach, { env: whenConnected("process.kill(process.pid, 'SIGKILL')") })
      expect(killed).toMatchObject({ signal: 9, stdout: '' })
      const { connecting } = JSON.parse(readFileSync(join(state, 'volume.json'), 'utf8'))
      expect(connecting).toMatch(/^rdmakit-/)
      const left = identifiers(front)
      expect(left).toEqual([...before, front === 'nbd' ? connecting : expect.stringMatching(/^ublkc\d+$/)])

      const next = shell.start(attach)
      const [, device] = await next.waitForLine(/^attached (\/dev\/(?:nbd|ublkb)\d+)$/, 60_000)
      expect(next.stderr).toMatch(/\/dev\/(?:nbd|ublkb)\d+ was created and never served: ending it/)
      const now = identifiers(front)
      expect(now).toHaveLength(before.length + 1)
      expect(now).not.toContain(connecting)
      await shell.run(`dd if=/dev/zero of=${device} bs=1M count=16 oflag=direct status=none`)
      expect(await next.stop()).toMatchObject({ status: 0 })
      expect(identifiers(front)).toEqual(before)
    }, 90_000)

    test('for a disk that is full leaves none', async () => {
      const how = "throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' })"
      const { status, stderr } = await shell.exec(attach, { env: whenConnected(how) })
      expect(stderr).toMatch(/no space left on device/)
      expect(status).toBe(69)
      expect(identifiers(front)).toEqual(before)
      expect(readdirSync(state)).toEqual(['lock'])
    }, 60_000)
  },
)
