import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { leaveSwap } from '../src/swap-free-group.js'

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
    expect(leaveSwap(root, own)).toMatchObject({ granted: true })
  })

  it('leaves the group of others alone, and says what to do', () => {
    group('/user.slice/session-1.scope', 'max')
    expect(leaveSwap(root, '/user.slice/session-1.scope')).toMatchObject({
      granted: false,
      reason: expect.stringContaining('MemorySwapMax=0'),
    })
    expect(existsSync(join(root, 'user.slice/session-1.scope/cgroup.procs'))).toBe(false)
  })

  it('moves from the root group into one of its own', () => {
    expect(leaveSwap(root, '/')).toMatchObject({ granted: true })
    const own = join(root, `rdmakit-nbd-${process.pid}`)
    expect(readFileSync(join(own, 'memory.swap.max'), 'utf8')).toBe('0')
    expect(readFileSync(join(own, 'cgroup.procs'), 'utf8')).toBe(String(process.pid))
  })

  it('says when there is no way', () => {
    expect(leaveSwap(join(root, 'nowhere'), '/')).toMatchObject({ granted: false })
  })
})
