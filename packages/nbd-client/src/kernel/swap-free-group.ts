import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import type { Safety } from './kernel.js'

const NAME = 'memory.swap.max 0'
const PREFIX = 'rdmakit-nbd-'

/**
 * A process's place in the control groups (version 2). One without swap, its own or one above, keeps all of a process
 * out of swap: what V8 maps cannot be locked, and a process whose heap is on the device that it serves waits for itself.
 */
export class ControlGroup {
  readonly #root: string | undefined
  /** below the root, from `/` on */
  readonly path: string

  /**
   * @param root where they are mounted; default: where they usually are
   * @param path the group of this process
   */
  constructor(root = mounted(), path = ownPath()) {
    this.#root = root
    this.path = path
  }

  /** Whether nothing that this process takes is swapped. A group made by {@link enter} goes with its last process. */
  swapFree(): Safety {
    const root = this.#root
    if (root === undefined) return refused('there is no cgroup v2')
    for (let path = this.path; ; path = dirname(path)) {
      const group = join(root, path)
      // The root group of the machine has no such limit, that of a container has.
      if (read(join(group, 'memory.swap.max')) === '0') {
        if (basename(group).startsWith(PREFIX)) endWith(root, group)
        return granted()
      }
      if (path === '/' || path === '.') return refused(`the process is in ${this.path}: ${ADVICE}`)
    }
  }

  /**
   * Moves this process from the root group into one of its own without swap. Its existing memory stays
   * charged to the root group. Any other group has an owner, and is left alone.
   */
  enter(): Safety {
    const root = this.#root
    if (root === undefined || this.path !== '/') return this.swapFree()
    const group = join(root, `${PREFIX}${process.pid}`)
    try {
      removeAbandoned(root)
      mkdirSync(group, { recursive: true })
      writeFileSync(join(group, 'memory.swap.max'), '0')
      writeFileSync(join(group, 'cgroup.procs'), String(process.pid))
      return granted()
    } catch (failure) {
      remove(group)
      const controllers = read(join(root, 'cgroup.subtree_control'))?.split(' ')
      return refused(
        controllers?.includes('memory') === false
          ? `memory is not in ${join(root, 'cgroup.subtree_control')}`
          : (failure as Error).message,
      )
    }
  }
}

const ADVICE = 'run it as a service with MemorySwapMax=0, or by "systemd-run --scope -p MemorySwapMax=0"'

function mounted(): string | undefined {
  return ['/sys/fs/cgroup', '/sys/fs/cgroup/unified'].find((path) =>
    existsSync(join(path, 'cgroup.controllers')),
  )
}

function ownPath(): string {
  return /^0::(.*)$/m.exec(readFileSync('/proc/self/cgroup', 'utf8'))?.[1] ?? '/'
}

/** Groups of killed processes. A group in which a process serves the device cannot be removed. */
function removeAbandoned(root: string): void {
  for (const name of readdirSync(root)) {
    const pid = name.startsWith(PREFIX) ? name.slice(PREFIX.length) : ''
    if (/^\d+$/.test(pid) && !existsSync(`/proc/${pid}`)) remove(join(root, name))
  }
}

/** The group is left to a process that continues with the device, if there is one. */
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
    // The group is not empty, or it does not exist.
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
