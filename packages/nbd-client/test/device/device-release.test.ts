import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished, vi } from 'vitest'
import { type Holder, release } from '../../src/device/device-release.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

// No kernel has so many: what is looked at is this machine's own processes.
const device = { front: 'nbd', index: 9731, identifier: 'rdmakit-0123456789abcdef' } as const

const holder = (more: Partial<Holder> = {}): Holder => ({
  isOurs: () => true,
  isLost: () => false,
  forced: new AbortController().signal,
  stirred: () => new Promise(() => {}),
  ...more,
})

/** A process that has a file open that is called as the device is. */
async function opener() {
  const folder = join(temporaryFolder(), 'dev')
  mkdirSync(folder)
  writeFileSync(join(folder, 'nbd9731'), '')
  const process = spawn('sh', ['-c', `exec 3<${folder}/nbd9731 && echo here && exec sleep 600`])
  onTestFinished(() => void process.kill('SIGKILL'))
  await new Promise((resolve) => process.stdout.once('data', resolve))
  return process
}

it('a device that nobody uses may go', async () => {
  expect(await release(device, holder())).toBe('free')
})

it('a device that is not ours any more is let be, also when that shows later', async () => {
  expect(await release(device, holder({ isOurs: () => false }))).toBe('gone')
})

it('a device is kept while the kernel cannot be asked whose it is', async () => {
  let asked = 0
  const isOurs = () => {
    if (++asked < 3) throw new Error('EMFILE: too many open files')
    return false
  }
  expect(await release(device, holder({ isOurs, stirred: async () => {} }))).toBe('gone')
  expect(asked).toBe(3)
})

it('a device that somebody has open stays until he lets go', async () => {
  const process = await opener()
  let looks = 0
  const stirred = async () => {
    if (++looks < 2) return
    process.kill('SIGKILL')
    await new Promise((resolve) => process.once('exit', resolve))
  }
  expect(await release(device, holder({ stirred }))).toBe('free')
  expect(looks).toBe(2)
}, 60_000)

it('a device that somebody has open is pulled when that is wanted, or nothing can be kept', async () => {
  await opener()
  const forced = new AbortController()
  const wanted = holder({ forced: forced.signal, stirred: async () => forced.abort() })
  expect(await release(device, wanted)).toBe('pull')
  expect(await release(device, holder({ isLost: () => true }))).toBe('pull')
}, 60_000)

it('swap whose pages found no memory is turned off later, by itself', async () => {
  const folder = temporaryFolder()
  const folders = { sys: join(folder, 'sys'), proc: join(folder, 'proc') }
  mkdirSync(folders.proc)
  const table = 'Filename Type Size Used Priority\n'
  writeFileSync(join(folders.proc, 'swaps'), `${table}/dev/nbd9731 partition 131068 256 -2\n`)
  const script = `#!/bin/sh
    echo "$1" >>${folder}/asked
    [ $(wc -l <${folder}/asked) -lt 3 ] && echo "swapoff: $1: swapoff failed: Cannot allocate memory" >&2 && exit 4
    echo >${folders.proc}/swaps
  `
  writeFileSync(join(folder, 'swapoff'), script, { mode: 0o700 })
  vi.stubEnv('PATH', `${folder}:${process.env.PATH}`)
  onTestFinished(() => void vi.unstubAllEnvs())
  expect(await release(device, holder({ stirred: async () => {} }), folders)).toBe('free')
  expect(readFileSync(join(folder, 'asked'), 'utf8')).toBe('/dev/nbd9731\n'.repeat(3))
})
