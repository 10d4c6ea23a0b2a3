import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import {
  leftIn,
  limitOf,
  MEMORY_GROUP_FILES,
  type MemoryGroup,
  type MemoryGroupTexts,
  memoryGroups,
} from './cgroups.js'

/** How the host is for memory. */
export interface HostMemory {
  /** bytes that can be had without swapping: the least of what the machine and each control group leave */
  readonly available: number
  /** the limit that leaves no more than that, for people */
  readonly limit: string
  /** bytes that this process may still pin; Infinity: as many as it can have */
  readonly pinnable: number
  /** `some avg10` of PSI: percent of the last 10 s in which a task waited for memory; 0 if unknown */
  readonly stalled: number
}

/** The kernel's texts about it; '' for those it does not have. */
export interface HostTexts {
  readonly meminfo: string
  readonly pressure: string
  /** /proc/self/status, limits and uid_map */
  readonly status: string
  readonly limits: string
  readonly uidMap: string
  readonly groups: readonly (MemoryGroupTexts & Pick<MemoryGroup, 'folder'>)[]
}

/** The kernel's files about it. */
export interface HostFiles extends Record<Exclude<keyof HostTexts, 'groups'>, string> {
  readonly ownCgroup: string
  readonly mounts: string
}

const FILES: HostFiles = {
  meminfo: '/proc/meminfo',
  pressure: '/proc/pressure/memory',
  status: '/proc/self/status',
  limits: '/proc/self/limits',
  uidMap: '/proc/self/uid_map',
  ownCgroup: '/proc/self/cgroup',
  mounts: '/proc/self/mountinfo',
}
/** capabilities(7): CAP_IPC_LOCK */
const IPC_LOCK = 14n

/**
 * What a process can have. `/dev/shm` is no part of it: memory that is shared with clients of shm:// is of memfd_create(2),
 * which takes it from a mount of the kernel's own.
 * @throws Error when meminfo does not tell
 */
export function hostMemory(texts: HostTexts): HostMemory {
  const least = [
    { limit: 'MemAvailable of the machine', bytes: inMeminfo(texts.meminfo, 'MemAvailable') },
    ...texts.groups.map((group) => ({ limit: `the memory limit of ${group.folder}`, bytes: leftIn(group) })),
  ].reduce((a, b) => (b.bytes < a.bytes ? b : a))
  return {
    available: least.bytes,
    limit: least.limit,
    pinnable: pinnable(texts),
    stalled: Number(/^some avg10=([\d.]+)/m.exec(texts.pressure)?.[1] ?? 0),
  }
}

/** Bytes that the process can have at most, whatever others have: RAM, or less in a group with a limit. */
export function totalMemory({ meminfo, groups }: Pick<HostTexts, 'meminfo' | 'groups'>): number {
  return Math.min(inMeminfo(meminfo, 'MemTotal'), ...groups.map(limitOf))
}

/** RDMA devices pin registered memory, up to RLIMIT_MEMLOCK, which does not bind CAP_IPC_LOCK (ib_umem_get). */
function pinnable({ status, limits, uidMap }: Pick<HostTexts, 'status' | 'limits' | 'uidMap'>): number {
  const capabilities = BigInt(`0x${/^CapEff:\s+([0-9a-f]+)$/m.exec(status)?.[1] ?? '0'}`)
  // Those of another user namespace's root mean nothing to the kernel here.
  const initial = uidMap.trim() === '' || /^\s*0\s+0\s+4294967295\s*$/.test(uidMap)
  if (initial && ((capabilities >> IPC_LOCK) & 1n) === 1n) return Number.POSITIVE_INFINITY
  const limit = /^Max locked memory\s+(\d+)/m.exec(limits)?.[1]
  if (limit === undefined) return Number.POSITIVE_INFINITY // "unlimited"
  const pinned = Number(/^VmPin:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0) * 1024
  return Math.max(0, Number(limit) - pinned)
}

/** Reads what the host, and the control groups that this process is in, have left. */
export class HostMemorySource {
  /** bytes, see {@link totalMemory} */
  readonly total: number
  readonly #files: HostFiles
  readonly #groups: readonly MemoryGroup[]

  /** @throws an errno error when there is no /proc/meminfo */
  constructor(files: Partial<HostFiles> = {}) {
    this.#files = { ...FILES, ...files }
    const { ownCgroup, mounts, meminfo } = this.#files
    this.#groups = memoryGroups(optional(ownCgroup), optional(mounts))
    this.total = totalMemory({ meminfo: readFileSync(meminfo, 'utf8'), groups: this.#readGroups() })
  }

  read(): HostMemory {
    const { meminfo, pressure, status, limits, uidMap } = this.#files
    return hostMemory({
      meminfo: readFileSync(meminfo, 'utf8'),
      pressure: optional(pressure),
      status: optional(status),
      limits: optional(limits),
      uidMap: optional(uidMap),
      groups: this.#readGroups(),
    })
  }

  #readGroups(): HostTexts['groups'] {
    return this.#groups.map(({ version, folder }) => {
      const files = MEMORY_GROUP_FILES[version]
      const text = (file: string) => (file === '' ? '' : optional(join(folder, file)))
      return {
        folder,
        max: text(files.max),
        high: text(files.high),
        current: text(files.current),
        stat: text(files.stat),
      }
    })
  }
}

function optional(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

function inMeminfo(text: string, field: string): number {
  const kilobytes = new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(text)?.[1]
  if (kilobytes === undefined) throw new Error(`the kernel does not tell its ${field}`)
  return Number(kilobytes) * 1024
}
