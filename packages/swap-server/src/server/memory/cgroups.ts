/** A control group that limits this process's memory, of either version of cgroups. */
export interface MemoryGroup {
  readonly version: 1 | 2
  /** where its files are */
  readonly folder: string
}

/** The files of such a group about its limit and its use; '' for a missing one. */
export interface MemoryGroupTexts {
  readonly max: string
  /** of version 2: above it a process is throttled so much that it cannot serve any more */
  readonly high: string
  readonly current: string
  readonly stat: string
}

export const MEMORY_GROUP_FILES: Readonly<Record<1 | 2, Readonly<Record<keyof MemoryGroupTexts, string>>>> = {
  1: { max: 'memory.limit_in_bytes', high: '', current: 'memory.usage_in_bytes', stat: 'memory.stat' },
  2: { max: 'memory.max', high: 'memory.high', current: 'memory.current', stat: 'memory.stat' },
}

/** Without a limit version 1 has a number that no machine has. */
const NO_LIMIT = 2 ** 60

/**
 * The groups of which the process is a member, from the outermost visible one on. In a namespace of its own
 * (cgroup_namespaces(7)) that is the one in which the namespace begins, and its path is `/`: the limits of a
 * container are there.
 * @param own /proc/self/cgroup @param mounts /proc/self/mountinfo
 */
export function memoryGroups(own: string, mounts: string): MemoryGroup[] {
  return mounts.split('\n').flatMap((line) => {
    const [before = '', after = ''] = line.split(' - ')
    const [, , , root, folder] = before.split(' ').map(unescaped)
    const [type, , options = ''] = after.split(' ')
    if (root === undefined || folder === undefined) return []
    const version =
      type === 'cgroup2' ? 2 : type === 'cgroup' && options.split(',').includes('memory') ? 1 : undefined
    const path = version && pathIn(own, version)
    if (version === undefined || path === undefined) return []
    return chain(folder, below(root, path)).map((each) => ({ version, folder: each }) as const)
  })
}

/** Bytes that the group may have; Infinity without a limit. */
export function limitOf({ max, high }: MemoryGroupTexts): number {
  return Math.min(...[max, high].map(limit))
}

/** Bytes by which the group may still grow: memory that it could drop counts as free, as in MemAvailable. */
export function leftIn(texts: MemoryGroupTexts): number {
  const { current, stat } = texts
  // In version 1 a group's own value comes first, and the one with its descendants has the prefix total_.
  const inactive = /^total_inactive_file (\d+)$/m.exec(stat) ?? /^inactive_file (\d+)$/m.exec(stat)
  return Math.max(0, limitOf(texts) - Number(current.trim()) + Number(inactive?.[1] ?? 0))
}

/** The path of the process in a hierarchy, as it sees it itself; undefined: it is in none of that version. */
function pathIn(own: string, version: 1 | 2): string | undefined {
  for (const line of own.split('\n')) {
    const [, controllers, path] = /^\d+:([^:]*):(\/.*)$/.exec(line) ?? []
    const fits = version === 2 ? controllers === '' : controllers?.split(',').includes('memory')
    if (fits) return path
  }
  return undefined
}

/** The part of `path` below the folder of the mounted hierarchy: empty if that folder is below or beside it. */
function below(root: string, path: string): string {
  if (root === '/') return path
  return path.startsWith(`${root}/`) ? path.slice(root.length) : '/'
}

function chain(folder: string, path: string): string[] {
  const names = path.split('/').filter((name) => name !== '' && name !== '..')
  return [...names.keys(), names.length].map((depth) => [folder, ...names.slice(0, depth)].join('/'))
}

function limit(text: string): number {
  const bytes = Number(text.trim() || Number.NaN)
  return Number.isNaN(bytes) || bytes >= NO_LIMIT ? Number.POSITIVE_INFINITY : bytes // "max", or no such file
}

/** proc_pid_mountinfo(5) has the octal codes of spaces and similar characters. */
const unescaped = (text: string) =>
  text.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)))
