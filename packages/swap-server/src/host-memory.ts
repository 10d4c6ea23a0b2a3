import { readFileSync } from 'node:fs'
import { join } from 'node:path'

/** How the host is for memory. */
export interface HostMemory {
  /** bytes that can be had without swapping */
  readonly available: number
  /** `some avg10` of PSI: percent of the last 10 s in which somebody waited for memory; 0 where unknown */
  readonly stalled: number
}

/** Where the kernel tells of it. */
export interface HostFiles {
  readonly meminfo: string
  readonly pressure: string
  readonly ownCgroup: string
  readonly cgroups: string
}

const FILES: HostFiles = {
  meminfo: '/proc/meminfo',
  pressure: '/proc/pressure/memory',
  ownCgroup: '/proc/self/cgroup',
  cgroups: '/sys/fs/cgroup',
}

/** Reads what the host, and the cgroups (v2) that this process is in, have left. */
export class HostMemorySource {
  /** bytes of RAM */
  readonly total: number
  readonly #files: HostFiles
  readonly #cgroups: readonly string[]

  /** @throws an errno error when there is no /proc/meminfo */
  constructor(files: Partial<HostFiles> = {}) {
    this.#files = { ...FILES, ...files }
    this.total = meminfo(readFileSync(this.#files.meminfo, 'utf8'), 'MemTotal')
    this.#cgroups = ancestors(optional(this.#files.ownCgroup), this.#files.cgroups)
  }

  read(): HostMemory {
    const available = meminfo(readFileSync(this.#files.meminfo, 'utf8'), 'MemAvailable')
    return {
      available: Math.min(available, ...this.#cgroups.map(leftIn)),
      stalled: Number(/^some avg10=([\d.]+)/m.exec(optional(this.#files.pressure))?.[1] ?? 0),
    }
  }
}

function optional(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

function meminfo(text: string, field: string): number {
  const kilobytes = new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(text)?.[1]
  if (kilobytes === undefined) throw new Error(`the kernel does not tell its ${field}`)
  return Number(kilobytes) * 1024
}

/** The folders of the process's own cgroup and those above it, without the root, which has no limit. */
function ancestors(ownCgroup: string, root: string): string[] {
  const names = (/^0::(\/.*)$/m.exec(ownCgroup)?.[1] ?? '/').split('/').filter((name) => name !== '')
  return names.map((_, depth) => join(root, ...names.slice(0, depth + 1)))
}

/** Bytes that a cgroup may still grow by: what it could drop counts as free, as it does in MemAvailable. */
function leftIn(cgroup: string): number {
  const limit = Number(optional(join(cgroup, 'memory.max')).trim() || Number.NaN)
  if (Number.isNaN(limit)) return Number.POSITIVE_INFINITY // "max", or no such file
  const used = Number(optional(join(cgroup, 'memory.current')))
  const inactive = Number(/^inactive_file (\d+)$/m.exec(optional(join(cgroup, 'memory.stat')))?.[1] ?? 0)
  return Math.max(0, limit - used + inactive)
}
