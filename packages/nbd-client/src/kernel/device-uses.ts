import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { basename, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { swapNames } from './swap.js'

/** A user of a device: it would lose its data, or get errors, if the device went. */
export interface Use {
  /** `holder`: a device on top of it, of dm, md, zram or loop say */
  readonly kind: 'swap' | 'mount' | 'holder' | 'open'
  /** name in /sys/class/block: the device's own, a partition's, or that of a device on top */
  readonly on: string
  /** where it is mounted, the device on top, or the process: for people */
  readonly by: string
}

export interface Uses {
  readonly uses: readonly Use[]
  /** processes of which this one may not see what they have open (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH) */
  readonly unseen: number
}

/** The kernel's folders for devices and processes. */
export interface KernelFolders {
  readonly sys: string
  readonly proc: string
}

export const KERNEL: KernelFolders = { sys: '/sys', proc: '/proc' }

/**
 * All users of a block device: of the device itself, its partitions, and all devices stacked on either, to
 * the top. A process that has only mapped it, and closed it since, is not found: reading a process's mappings
 * takes a lock that a process waiting for one of our pages holds.
 *
 * @param device as in /sys/class/block
 * @param except processes that are no users
 */
export function usesOf(device: string, except: readonly number[] = [], folders = KERNEL): Uses {
  const stack = stackOn(device, folders.sys)
  const members = new Set(stack.members)
  const { opens, unseen } = opensOf(members, except, folders.proc)
  const uses = [
    ...swapsOf(members, folders.proc),
    ...mountsOf(stack.members, folders),
    ...stack.holders,
    ...opens,
  ]
  return { uses, unseen }
}

/** How long udev and similar programs may examine a device that has changed. */
export const MOMENT_MS = 3_000
const MOMENT_LOOK_MS = 100

/** {@link usesOf} without processes that have it open for less than `moment` milliseconds. */
export async function lastingUses(
  device: string,
  except: readonly number[],
  moment: number,
  folders = KERNEL,
): Promise<Uses> {
  const deadline = performance.now() + moment
  for (;;) {
    const found = usesOf(device, except, folders)
    if (found.uses.every(({ kind }) => kind !== 'open') || performance.now() >= deadline) return found
    await delay(MOMENT_LOOK_MS)
  }
}

/** `nbd0 is swap; nbd0p1 is mounted on /srv; dm-0 is on nbd0p2; process 12 (dd) has nbd0 open`. */
export function describeUses(uses: readonly Use[]): string {
  const words = ({ kind, on, by }: Use) =>
    ({
      swap: `${on} is swap`,
      mount: `${on} is mounted on ${by}`,
      holder: `${by} is on ${on}`,
      open: `${by} has ${on} open`,
    })[kind]
  return uses.map(words).join('; ')
}

/** A device has partitions, and devices on it; each of those too. */
function stackOn(device: string, sys: string): { members: readonly string[]; holders: readonly Use[] } {
  const members = [device]
  const holders: Use[] = []
  const backings = backingsOf(sys)
  for (const on of members) {
    for (const partition of partitionsOf(on, sys)) if (!members.includes(partition)) members.push(partition)
    for (const by of [...namesIn(join(sys, 'class/block', on, 'holders')), ...(backings.get(on) ?? [])]) {
      holders.push({ kind: 'holder', on, by })
      if (!members.includes(by)) members.push(by)
    }
  }
  return { members, holders }
}

/** Those of a device and its partitions that are swap, whose pages it has. */
export function swapsOn(device: string, { sys, proc } = KERNEL): ReturnType<typeof swapNames> {
  const parts = [device, ...partitionsOf(device, sys)]
  return swapNames(readFileSync(join(proc, 'swaps'), 'utf8')).filter(({ name }) => parts.includes(name))
}

/** Those that the kernel knows. */
export function partitionsOf(device: string, sys = KERNEL.sys): string[] {
  const folder = join(sys, 'class/block', device)
  return namesIn(folder).filter((name) => existsSync(join(folder, name, 'partition')))
}

/** @returns by name of a device, those of zram and loop that have it as a file of theirs: that makes them no holders */
function backingsOf(sys: string): Map<string, string[]> {
  const backings = new Map<string, string[]>()
  for (const by of namesIn(join(sys, 'class/block')))
    for (const file of ['backing_dev', 'loop/backing_file']) {
      const path = textOf(join(sys, 'class/block', by, file))?.trim()
      if (path?.startsWith('/')) {
        const on = basename(path)
        backings.set(on, [...(backings.get(on) ?? []), by])
      }
    }
  return backings
}

function swapsOf(members: ReadonlySet<string>, proc: string): Use[] {
  return swapNames(readFileSync(join(proc, 'swaps'), 'utf8'))
    .filter(({ name }) => members.has(name))
    .map(({ name }) => ({ kind: 'swap', on: name, by: '' }))
}

/** In all mount namespaces, for each container has its own. */
function mountsOf(members: readonly string[], { sys, proc }: KernelFolders): Use[] {
  const numbers = new Map(
    members.flatMap((name) => {
      const number = textOf(join(sys, 'class/block', name, 'dev'))?.trim()
      return number === undefined ? [] : [[number, name] as const]
    }),
  )
  const found = new Map<string, Use>()
  const seen = new Set<string>()
  for (const pid of processesIn(proc)) {
    const namespace = linkOf(join(proc, pid, 'ns/mnt'))
    if (typeof namespace === 'string') {
      if (seen.has(namespace)) continue
      seen.add(namespace)
    }
    for (const line of mountinfoOf(join(proc, pid)).split('\n')) {
      const { number, point, source } = mountOf(line)
      // A file system over several devices has a number of its own, and names one of them.
      const on = numbers.get(number) ?? members.find((name) => source === `/dev/${name}`)
      if (on !== undefined) found.set(`${on} ${point}`, { kind: 'mount', on, by: point })
    }
  }
  return [...found.values()]
}

/** For a process that this one may not examine, which counts as unseen: nothing. */
function mountinfoOf(process: string): string {
  try {
    return textOf(join(process, 'mountinfo')) ?? ''
  } catch {
    return ''
  }
}

/** A line of mountinfo, proc(5). */
function mountOf(line: string) {
  const [before = '', after = ''] = line.split(' - ')
  const [, , number = '', , point = ''] = before.split(' ')
  const [, source = ''] = after.split(' ')
  const plain = (text: string) =>
    text.replace(/\\([0-7]{3})/g, (_, octal) => String.fromCharCode(Number.parseInt(octal, 8)))
  return { number, point: plain(point), source: plain(source) }
}

function opensOf(members: ReadonlySet<string>, except: readonly number[], proc: string) {
  const opens: Use[] = []
  let unseen = 0
  for (const pid of processesIn(proc)) {
    if (except.includes(Number(pid))) continue
    try {
      const open = new Set(
        readdirSync(join(proc, pid, 'fd')).flatMap((fd) => deviceOf(join(proc, pid, 'fd', fd))),
      )
      const name = textOf(join(proc, pid, 'comm'))?.trim() ?? '?'
      for (const on of open)
        if (members.has(on)) opens.push({ kind: 'open', on, by: `process ${pid} (${name})` })
    } catch (failure) {
      if (!isGone(failure)) unseen++
    }
  }
  return { opens, unseen }
}

/** @throws Error: this process may not know */
function deviceOf(descriptor: string): string | never[] {
  const path = linkOf(descriptor)
  if (path instanceof Error) throw path
  // Without its folder when the mount namespace in which it was opened is gone.
  return /^(?:.*\/dev)?\/([^/]+?)(?: \(deleted\))?$/.exec(path ?? '')?.[1] ?? []
}

const processesIn = (proc: string) => readdirSync(proc).filter((name) => /^\d+$/.test(name))

/** @returns undefined: it is gone */
function linkOf(path: string): string | Error | undefined {
  try {
    return readlinkSync(path)
  } catch (failure) {
    return isGone(failure) ? undefined : (failure as Error)
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch (failure) {
    if (isGone(failure)) return []
    throw failure
  }
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch (failure) {
    if (isGone(failure)) return undefined
    throw failure
  }
}

/** A process or device that ended while it was looked at; or, EINVAL, a process that has ended and is not waited for. */
function isGone(failure: unknown): boolean {
  const { code = '' } = failure as NodeJS.ErrnoException
  return ['ENOENT', 'ESRCH', 'ENOTDIR', 'ENODEV', 'ENXIO', 'EINVAL'].includes(code)
}
