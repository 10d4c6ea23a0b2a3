import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Volume } from '../../src/engine/block-volume.js'
import { keepLanesNear, processorsOf, runningProcessors } from '../../src/kernel/lane-processors.js'
import { setup } from '../helpers/fixture.js'

let devices: string

beforeEach(() => {
  devices = mkdtempSync(join(tmpdir(), 'rdmakit-block-'))
})

afterEach(() => rmSync(devices, { recursive: true }))

/** Writes what the kernel writes into cpu_list of a device's connection. */
function sends(connection: number, list: string): void {
  const folder = join(devices, 'nbd3', 'mq', String(connection))
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'cpu_list'), `${list}\n`)
}

/** `Cpus_allowed_list` of this process's threads of that name, see proc(5). */
function allowed(name: string): string[] {
  const threads = readdirSync('/proc/self/task').map((thread) =>
    readFileSync(`/proc/self/task/${thread}/status`, 'utf8'),
  )
  return threads
    .filter((status) => status.startsWith(`Name:\t${name}\n`))
    .map((status) => /^Cpus_allowed_list:\t(.*)$/m.exec(status)?.[1] ?? '')
}

describe('the processors of a connection', () => {
  it.each([
    ['0', [0]],
    ['0, 2, 64', [0, 2, 64]],
    ['', []],
  ])('are read from "%s"', (list, processors) => {
    sends(1, list)
    expect(processorsOf('nbd3', 1, devices)).toEqual(processors)
  })

  it('are none where the kernel has not made its queue', () => {
    expect(processorsOf('nbd3', 5, devices)).toEqual([])
  })
})

describe('the processors that run', () => {
  it.each([
    ['0\n', [0]],
    ['0-3\n', [0, 1, 2, 3]],
    ['0-1,3,8-9\n', [0, 1, 3, 8, 9]],
  ])('are read from %j', (list, processors) => {
    expect([...runningProcessors(list)]).toEqual(processors)
  })

  it('are those of this machine', () => {
    expect(runningProcessors().size).toBeGreaterThanOrEqual(1)
  })
})

describe('a lane', () => {
  const keep = (engine: unknown, running?: Set<number>) => {
    const told = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
    keepLanesNear({ lanes: [{ index: 0 }], engine } as unknown as Volume, 'nbd3', devices, running)
    const text = told.mock.calls.join('')
    told.mockRestore()
    return text
  }

  it('is kept on the processors whose requests it gets', async () => {
    await using made = await setup()
    await made.addLane()
    const [processor] = /\d+/.exec(allowed('nbd-lane-0').join()) ?? []
    sends(0, `${processor}, 8191`)
    expect(keep(made.engine)).toBe('')
    expect(allowed('nbd-lane-0')).toEqual([processor])
  })

  it('runs where it did when it may run on none of them', async () => {
    await using made = await setup()
    await made.addLane()
    const before = allowed('nbd-lane-0')
    sends(0, '8191')
    expect(keep(made.engine, new Set([8191]))).toContain('lane 0 of /dev/nbd3 runs on any processor')
    // On a machine that may get that one, nothing is wrong.
    expect(keep(made.engine)).toBe('')
    expect(before).toHaveLength(1)
    expect(allowed('nbd-lane-0')).toEqual(before)
  })

  it('is pinned to processors that there can be only', async () => {
    await using made = await setup()
    await made.addLane()
    const { engine } = made
    expect(() => engine.pinLane(0, [])).toThrow(expect.objectContaining({ code: 'EINVAL' }))
    expect(() => engine.pinLane(7, [0])).toThrow(expect.objectContaining({ code: 'EINVAL' }))
    expect(() => engine.pinLane(0, [8192])).toThrow(TypeError)
    expect(() => engine.pinLane(0, [-1])).toThrow(TypeError)
  })
})
