import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ControlGroup } from '../../src/kernel/swap-free-group.js'

/** Stands for the mounted hierarchy: the kernel's own needs root, and cgroup v2 with the memory controller. */
let root: string

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'nbd-groups-'))
})

afterEach(() => {
  rmSync(root, { recursive: true, force: true })
})

function group(path: string, swapMax: string): void {
  mkdirSync(join(root, path), { recursive: true })
  writeFileSync(join(root, path, 'memory.swap.max'), `${swapMax}\n`)
}

describe('a process that serves swap', () => {
  it.each(['/a.service', '/system.slice/a.service/b'])('is content in %s below one without swap', (own) => {
    group(own, 'max')
    group(`/${own.split('/')[1]}`, '0')
    expect(new ControlGroup(root, own).swapFree()).toMatchObject({ granted: true })
  })

  it('is content in a container without swap', () => {
    group('/', '0')
    group('/a', 'max')
    expect(new ControlGroup(root, '/a').swapFree()).toMatchObject({ granted: true })
    expect(new ControlGroup(root, '/').swapFree()).toMatchObject({ granted: true })
  })

  it('leaves the group of others alone, and says what to do', () => {
    group('/system.slice/a.service', 'max')
    expect(new ControlGroup(root, '/system.slice/a.service').enter()).toMatchObject({
      granted: false,
      reason: expect.stringContaining('MemorySwapMax=0'),
    })
    expect(existsSync(join(root, 'system.slice/a.service/cgroup.procs'))).toBe(false)
  })

  it('moves from the root group into one of its own', () => {
    expect(new ControlGroup(root, '/').swapFree()).toMatchObject({ granted: false })
    expect(new ControlGroup(root, '/').enter()).toMatchObject({ granted: true })
    const own = join(root, `rdmakit-nbd-${process.pid}`)
    expect(readFileSync(join(own, 'memory.swap.max'), 'utf8')).toBe('0')
    expect(readFileSync(join(own, 'cgroup.procs'), 'utf8')).toBe(String(process.pid))
  })

  it('removes the groups of processes that are gone, and no other', () => {
    const names = ['rdmakit-nbd-4194305', `rdmakit-nbd-${process.ppid}`, 'rdmakit-nbd-x', 'a.slice']
    for (const name of names) mkdirSync(join(root, name))
    new ControlGroup(root, '/').enter()
    expect(names.filter((name) => existsSync(join(root, name)))).toEqual(names.slice(1))
  })

  it('says when there is no way', () => {
    expect(new ControlGroup(join(root, 'nowhere'), '/').enter()).toMatchObject({ granted: false })
    writeFileSync(join(root, 'cgroup.subtree_control'), 'cpu io\n')
    mkdirSync(join(root, `rdmakit-nbd-${process.pid}/memory.swap.max`), { recursive: true })
    expect(new ControlGroup(root, '/').enter()).toMatchObject({
      granted: false,
      reason: `memory is not in ${root}/cgroup.subtree_control`,
    })
  })
})
