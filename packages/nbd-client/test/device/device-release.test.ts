import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished, vi } from 'vitest'
import { type Holder, release } from '../../src/device/device-release.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

/** From a swapoff that failed to the next one. */
const AGAIN_MS = 30_000
/** Of such waits, which here end when the test says so. */
const waits = vi.hoisted((): (() => void)[] => [])

vi.mock('node:timers/promises', async (original) => {
  const timers = await original<typeof import('node:timers/promises')>()
  const setTimeout = async (milliseconds: number) => {
    if (milliseconds !== AGAIN_MS) return await timers.setTimeout(milliseconds)
    await new Promise<void>((resolve) => waits.push(resolve))
  }
  return { ...timers, setTimeout }
})

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

/** A device that is swap, and a swapoff in the PATH that finds no memory but for the third time. */
function swapWithoutMemory() {
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
  return { folders, asked: () => readFileSync(join(folder, 'asked'), 'utf8') }
}

it('swap whose pages found no memory is turned off when something has happened', async () => {
  const { folders, asked } = swapWithoutMemory()
  expect(await release(device, holder({ stirred: async () => {} }), folders)).toBe('free')
  expect(asked()).toBe('/dev/nbd9731\n'.repeat(3))
})

it('swap whose pages found no memory is turned off later, by itself, and not asked for all the time', async () => {
  const { folders, asked } = swapWithoutMemory()
  const before = waits.length
  const released = release(device, holder(), folders)
  for (const times of [1, 2]) {
    await expect.poll(() => waits.length - before, { timeout: 20_000 }).toBe(times)
    expect(asked()).toBe('/dev/nbd9731\n'.repeat(times))
    waits.at(-1)?.()
  }
  expect(await released).toBe('free')
  expect(asked()).toBe('/dev/nbd9731\n'.repeat(3))
}, 60_000)
