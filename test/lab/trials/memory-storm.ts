import { join } from 'node:path'
import { guestScripts } from '../base/paths.js'
import { type RunningProcess, type Shell, tail } from '../base/shell.js'
import type { LabParts } from '../machine/lab-parts.js'
import { ensureAllocationCounter } from '../machine/native.js'
import { GuestPair } from '../machine/pair.js'
import { loadDriver, RemoteSwap, rdmakitSwap } from '../swap/remote-swap.js'
import { conclude, violated } from './trial.js'

export interface MemoryStormOptions {
  seconds: number
  /** over a device of ublk, not nbd */
  ublk: boolean
  /** RDMA in user space over TCP, not Soft-RoCE */
  iwarp: boolean
  /** datagrams for the client beside the pages */
  flood: boolean
}

interface MemoryStorm {
  /** of memory, in the middle of all samples and at most: 0 to 1 */
  used: number
  usedMost: number
  pagesIn: number
  pagesOut: number
  /** pages that stress-ng found wrong: lines of its report */
  verifyErrors: number
  /** what stress-ng did: its own unit of work */
  operations: number
  oomKills: number
  /** longest time without a page going in or out, and longest gap between two samples: seconds */
  longestStall: number
  longestSilence: number
  /** tasks that the kernel says hung for 30 s */
  hungTasks: number
  /** of the page path's threads while it lasted, and of the rest of the process */
  laneAllocations: number
  otherAllocations: number
  /** of the page path's threads: how many of each */
  laneSystemCalls: Record<string, number>
  /** datagrams that the server has sent beside the pages */
  flooded: number
  /** of the client, KiB: at most in swap, and at most outside of its control group */
  clientSwapped: number
  clientOutside: number
}

const counts = '/run/allocations'
const hungAfterSeconds = 30
/** KiB: the kernel counts a thread's pages up to 64 at a time. */
const clientOutsideAtMost = 4 * 1024

/**
 * Two guests: the client's whole memory is written over, 1.2 times, by four processes that verify it, and
 * swaps to the server's memory. Throws when the swap does not end in good order.
 */
async function memoryStorm(
  parts: LabParts,
  { seconds, ublk, iwarp, flood }: MemoryStormOptions,
  print: (line: string) => void = () => {},
): Promise<MemoryStorm> {
  const counter = await ensureAllocationCounter()
  await using pair = await GuestPair.boot(parts, {
    server: { memoryMiB: 1536 },
    client: { memoryMiB: 1024 },
  })
  const { server, client } = pair
  const device = await loadDriver(client, parts, ublk)
  await client.run(`echo ${hungAfterSeconds} >/proc/sys/kernel/hung_task_timeout_secs; dmesg -n 8`)
  const uri = `${iwarp ? 'iwarp' : 'rdma'}://${GuestPair.serverAddress}:7471`
  const service = rdmakitSwap(uri, '1G', '1000M', device)
  const attach = [
    ...['env', `LD_PRELOAD=${counter}`, `RDMAKIT_ALLOCATIONS=${counts}`, ...(service.attach as string[])],
    // No server fails here, but on a busy machine an emulated one stands still for seconds.
    ...['--timeout', '30'],
  ]
  const swap = await RemoteSwap.attach(server, client, { ...service, attach })
  print(`remote swap is on; the storm lasts ${seconds} s`)
  const threads = await laneThreads(client)
  const before = await allocations(client)
  if (before.lanes === 0) throw new Error('the allocation counter does not count')
  await client.run(['sh', join(guestScripts, 'load', 'count-syscalls.sh'), 'start', ...threads])
  const group = (await client.run('ls -d /sys/fs/cgroup/rdmakit-nbd-*')).trim()
  const flooding = flood ? await startFlood(server) : undefined
  // An operation of stress-ng is not broken off when its time is up, and each of its pages swaps.
  const storm = await client
    .exec(['sh', join(guestScripts, 'load', 'storm.sh'), String(seconds), group], {
      deadlineMs: 1000 * (2 * seconds + 120),
    })
    .catch((error: Error) => {
      // A guest that hangs for memory may not even be able to ask the kernel for its log.
      print(client.consoleTail())
      throw error
    })
  const flooded = Number(/^sent (\d+)$/m.exec((await flooding?.stop())?.stdout ?? '')?.[1] ?? 0)
  const systemCalls = await client.run(['sh', join(guestScripts, 'load', 'count-syscalls.sh'), 'stop'])
  const after = await allocations(client)
  const output = storm.stdout + storm.stderr
  try {
    await swap.detach()
    if (storm.status !== 0 && storm.status !== 2) throw new Error(`stress-ng ended with ${storm.status}`)
  } catch (error) {
    print(`${tail(output)}\n${tail(await client.run('dmesg'))}`)
    throw error
  }
  const kernel = await client.run('dmesg; grep oom_kill /proc/vmstat')
  return {
    ...summary(samplesOf(output)),
    ...clientOf(output),
    flooded,
    verifyErrors: storm.status === 0 ? 0 : Math.max(1, output.match(/stress-ng: fail: /g)?.length ?? 0),
    operations: Number(/\] vm +(\d+)/.exec(output)?.[1]),
    oomKills: Number(/^oom_kill (\d+)$/m.exec(kernel)?.[1]),
    hungTasks: kernel.match(/blocked for more than/g)?.length ?? 0,
    laneAllocations: after.lanes - before.lanes,
    otherAllocations: after.others - before.others,
    laneSystemCalls: Object.fromEntries(
      [...systemCalls.matchAll(/^(\S+) (\d+)$/gm)].map(([, name, count]) => [name, Number(count)]),
    ),
  }
}

async function startFlood(server: Shell): Promise<RunningProcess> {
  const flooding = server.start(['node', join(guestScripts, 'load', 'flood.mjs'), GuestPair.clientAddress])
  await flooding.waitForLine(/^flooding/, 60_000)
  return flooding
}

/** The violations that a storm showed; empty if there are none. */
function faultsOf(storm: MemoryStorm, { iwarp, flood }: MemoryStormOptions): string[] {
  // The work of a lane: requests from the kernel's socket and answers to it, or both by io_uring; of rxe a write for a doorbell, an
  // ioctl to arm a completion queue, a read for its event; of iwarp what its sockets need; and the wait for either: the offer
  // of the core before a lane looks on, or sleep.
  const work = new Set([
    'sched_yield',
    'ppoll',
    'epoll_ctl',
    'recvfrom',
    'recvmsg',
    'sendmsg',
    'io_uring_enter',
    'write',
    'read',
    'ioctl',
    ...(iwarp ? ['epoll_wait', 'epoll_pwait', 'sendto', 'writev', 'readv'] : []),
  ])
  const other = Object.keys(storm.laneSystemCalls).filter((name) => !work.has(name))
  return violated([
    [storm.verifyErrors === 0, `${storm.verifyErrors} verify errors`],
    [storm.oomKills === 0, `${storm.oomKills} processes killed for lack of memory`],
    [storm.hungTasks === 0, `${storm.hungTasks} tasks hung for ${hungAfterSeconds} s`],
    [storm.otherAllocations > 0, 'no allocation of the rest of the process was counted'],
    [storm.laneAllocations === 0, `the page path allocated ${storm.laneAllocations} times`],
    [other.length === 0, `the page path called ${other.join(', ')}`],
    [storm.usedMost >= 0.95, `at most ${(100 * storm.usedMost).toFixed(1)} % of the memory were in use`],
    [storm.clientSwapped === 0, `${storm.clientSwapped} KiB of the client were swapped`],
    [
      storm.clientOutside <= clientOutsideAtMost,
      `${storm.clientOutside} KiB of the client were outside of its control group`,
    ],
    [Object.keys(storm.laneSystemCalls).length > 0, 'no system call of the page path was counted'],
    [!flood || storm.flooded > 0, 'nothing was flooded'],
    [storm.pagesIn > 0 && storm.pagesOut > 0, 'the guest did not swap'],
  ])
}

/** The command: prints what it saw; 0 when all is well. */
export async function memoryStormCommand(
  parts: LabParts,
  options: MemoryStormOptions,
  say: (line: string) => void,
): Promise<number> {
  const storm = await memoryStorm(parts, options, say)
  return conclude(storm, faultsOf(storm, options), say)
}

async function laneThreads(shell: Shell): Promise<string[]> {
  const found = await shell.run('grep -l "^nbd-lane-" /proc/[0-9]*/task/*/comm')
  return [...found.matchAll(/task\/(\d+)\/comm/g)].map(([, thread]) => thread as string)
}

async function allocations(shell: Shell): Promise<{ lanes: number; others: number }> {
  const [lanes, others] = (await shell.run(['od', '-An', '-tu8', counts])).trim().split(/\s+/).map(Number)
  if (lanes === undefined || others === undefined) throw new Error(`${counts} holds no two numbers`)
  return { lanes, others }
}

function clientOf(output: string): Pick<MemoryStorm, 'clientSwapped' | 'clientOutside'> {
  const samples = [...output.matchAll(/^client (\d+) (\d+) (\d+) (\d+)$/gm)].map((match) => {
    const [swapped = 0, groupSwapped = 0, anonymous = 0, groupAnonymous = 0] = match.slice(1).map(Number)
    return { swapped: Math.max(swapped, groupSwapped), outside: Math.max(0, anonymous - groupAnonymous) }
  })
  if (samples.length === 0) throw new Error('the storm left no samples of the client')
  return {
    clientSwapped: Math.max(...samples.map(({ swapped }) => swapped)),
    clientOutside: Math.max(...samples.map(({ outside }) => outside)),
  }
}

interface Sample {
  uptime: number
  used: number
  pagesIn: number
  pagesOut: number
}

function samplesOf(output: string): Sample[] {
  return [...output.matchAll(/^sample (\S+) (\d+) (\d+) (\d+) (\d+)$/gm)].map((match) => {
    const [uptime = 0, total = 0, available = 0, pagesIn = 0, pagesOut = 0] = match.slice(1).map(Number)
    return { uptime, used: 1 - available / total, pagesIn, pagesOut }
  })
}

function summary(
  samples: readonly Sample[],
): Pick<MemoryStorm, 'used' | 'usedMost' | 'pagesIn' | 'pagesOut' | 'longestStall' | 'longestSilence'> {
  const [first, last] = [samples[0], samples.at(-1)]
  if (!first || !last) throw new Error('the storm left no samples')
  const used = samples.map((sample) => sample.used).sort((a, b) => a - b)
  let longestStall = 0
  let longestSilence = 0
  let moved = first
  samples.forEach((sample, index) => {
    longestSilence = Math.max(longestSilence, sample.uptime - (samples[index - 1] ?? first).uptime)
    longestStall = Math.max(longestStall, sample.uptime - moved.uptime)
    if (sample.pagesIn + sample.pagesOut > moved.pagesIn + moved.pagesOut) moved = sample
  })
  return {
    used: used[Math.floor(used.length / 2)] as number,
    usedMost: used.at(-1) as number,
    pagesIn: last.pagesIn - first.pagesIn,
    pagesOut: last.pagesOut - first.pagesOut,
    longestStall,
    longestSilence,
  }
}
