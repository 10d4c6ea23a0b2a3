import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import type { Safety } from './kernel.js'

const NAME = 'memory.swap.max 0'
const PREFIX = 'rdmakit-nbd-'

/**
 * Keeps all of this process out of swap by its control group (cgroup v2): what V8 maps cannot be locked, and a
 * process whose heap is on the device that it serves waits for itself. A group that has no swap already, as a
 * service with MemorySwapMax=0, is enough; from the root group it moves into one of its own, which goes when it ends.
 * What it had before it moved stays with the root group and may still be swapped: only a process that is started in
 * such a group, as a service is, is safe as a whole. Any other group belongs to somebody: it is left alone, and what to do is said.
 * @param root where cgroup v2 is mounted; default: where it usually is
 * @param own the group of this process below it
 */
export function leaveSwap(root = mounted(), own = ownGroup()): Safety {
  if (root === undefined) return refused('there is no cgroup v2')
  // The root group has no such limit.
  for (let path = own; path !== '/' && path !== '.'; path = dirname(path)) {
    const group = join(root, path)
    if (read(join(group, 'memory.swap.max')) !== '0') continue
    if (basename(group).startsWith(PREFIX)) endWith(root, group)
    return granted()
  }
  if (own !== '/')
    return refused(
      `the process is in ${own}: run it as a service with MemorySwapMax=0, or by "systemd-run --scope -p MemorySwapMax=0"`,
    )
  const group = join(root, `${PREFIX}${process.pid}`)
  try {
    mkdirSync(group)
    writeFileSync(join(group, 'memory.swap.max'), '0')
    writeFileSync(join(group, 'cgroup.procs'), String(process.pid))
  } catch (failure) {
    remove(group)
    return refused((failure as Error).message)
  }
  endWith(root, group)
  return granted()
}

function mounted(): string | undefined {
  return ['/sys/fs/cgroup', '/sys/fs/cgroup/unified'].find((path) =>
    existsSync(join(path, 'cgroup.controllers')),
  )
}

function ownGroup(): string {
  return /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8'))?.[1] ?? '/'
}

/** The group is left to a process that goes on with the device, if there is one. */
function endWith(root: string, group: string): void {
  process.once('exit', () => {
    try {
      writeFileSync(join(root, 'cgroup.procs'), String(process.pid))
    } catch {
      // Then the group stays.
    }
    remove(group)
  })
}

function remove(group: string): void {
  try {
    rmdirSync(group)
  } catch {
    // Somebody is in it, or it is not there.
  }
}

function read(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8').trim()
  } catch {
    return undefined
  }
}

const granted = (): Safety => ({ name: NAME, granted: true, reason: '' })
const refused = (reason: string): Safety => ({ name: NAME, granted: false, reason })
