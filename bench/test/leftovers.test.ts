// What a bench leaves that a signal ends: nothing. With the programs themselves, 3 s.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { constants, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest'

const dist = join(import.meta.dirname, '../dist')

/** Where the bench makes its folders. Its name is in the command line of each child, by that of a socket. */
let folder: string
let bench: ChildProcess | undefined

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'bench-test-'))
})

afterEach(() => {
  bench?.kill('SIGKILL')
  for (const pid of children()) process.kill(pid, 'SIGKILL')
  rmSync(folder, { recursive: true })
})

function start(...args: string[]): ChildProcess {
  const env = { ...process.env, TMPDIR: folder }
  bench = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'ignore'], env })
  return bench
}

function children(): number[] {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && name !== String(bench?.pid))
  return pids.filter((pid) => commandLine(pid).includes(folder)).map(Number)
}

function commandLine(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return '' // it has ended meanwhile
  }
}

test.each(['SIGINT', 'SIGTERM', 'SIGHUP'] as const)(
  '%s ends a suite, its programs and its folder',
  async (signal) => {
    const running = start(join(dist, 'main.js'), 'parameter-server', '--quick')
    await vi.waitUntil(() => children().length > 0, { timeout: 20_000, interval: 5 })
    expect(readdirSync(folder)).toEqual([expect.stringMatching(/^rdmakit-bench-/)])
    const exited = once(running, 'exit')
    running.kill(signal)
    expect(await exited).toEqual([128 + constants.signals[signal], null])
    expect(readdirSync(folder)).toEqual([])
    await expect.poll(children).toEqual([])
  },
)

test('a signal frees the memory that qemu-nbd serves', async () => {
  const script = `
    import { exitOnSignals } from '${dist}/core/leftovers.js'
    import { open } from '${dist}/nbd/targets.js'
    exitOnSignals()
    await open('qemu-nbd, tmpfs', undefined, '${folder}')
    console.log('serving')
    setInterval(() => {}, 1000)`
  const running = start('--input-type=module', '--eval', script)
  await once(running.stdout as NodeJS.ReadableStream, 'data')
  const [, memory] = /\0(\/dev\/shm\/[^\0]*)\/disk\0/.exec(commandLine(String(children()[0]))) ?? []
  onTestFinished(() => rmSync(memory as string, { recursive: true, force: true }))
  expect(existsSync(memory as string)).toBe(true)
  const exited = once(running, 'exit')
  running.kill('SIGTERM')
  await exited
  expect(existsSync(memory as string)).toBe(false)
  await expect.poll(children).toEqual([])
})
