import { join } from 'node:path'
import { UsageError } from '../base/errors.js'
import { guestScripts } from '../base/paths.js'
import { randomNumbers, shuffled } from '../base/random.js'
import { tail } from '../base/shell.js'
import { until } from '../base/until.js'
import type { Guest } from '../machine/guest.js'
import type { LabParts } from '../machine/lab-parts.js'
import { ensurePageChurn } from '../machine/native.js'
import { GuestStar } from '../machine/star.js'
import { loadDriver } from '../swap/remote-swap.js'
import { type ClientStatus, ReplicatedSwap } from '../swap/replicated-swap.js'
import { conclude, ioError, stallsOf, stepsTold, violated } from './trial.js'

export interface KillAnythingOptions {
  /** How long at least, where `faults` is 0; and each kind of fault comes at least once. */
  seconds: number
  /** how many of them; 0: as many as come */
  faults: number
  seed: number
  /** that the program that swaps has; half of it fits into memory */
  mebibytes: number
  /** how many hosts lend memory */
  servers: number
  /** of each page, on different hosts */
  replicas: number
  /** one more of each page on the client's own disk, and no WRITE answered before the page is there */
  backup: boolean
  /** over a device of ublk, not nbd */
  ublk: boolean
  /** one kind of fault, and no other */
  only?: string
}

export interface KillAnything {
  seed: number
  seconds: number
  faults: Fault[]
  /** of the program that swaps: pages, steps, wrong pages, and its longest step in seconds */
  pages: number
  steps: number
  wrongPages: number
  longestStall: number
  pagesIn: number
  pagesOut: number
  /** what nbd-client had to read from its backup */
  backup?: BackupUse
  /** lines of the kernel's log */
  ioErrors: string[]
}

export interface BackupUse {
  bytesRead: number
  bytesWritten: number
  /** it worked to the end */
  working: boolean
}

export interface Fault {
  kind: FaultKind
  server?: number
  /** until the volume was whole again */
  seconds: number
  /** while there was no client, or no server with the pages */
  away: number
  /** of the steps that ended meanwhile */
  longestStall: number
}

/**
 * A step of the program may wait this long, in seconds, and as long as there is no client besides: a server is
 * lost after 4 s (--timeout), a READ may have to try both replicas, and what the kernel had sent to a client that
 * is gone it repeats after 6 s (--timeout + 2 s). That is what nbd-client tells the kernel as its own bound.
 */
export const stallDeadline = 14

const linkDownMs = 10_000
const stillMs = 10_000

type FaultKind = keyof typeof faults

/** They return when it is done, and may have something to tell of it. */
const faults = {
  'server killed': (swap: ReplicatedSwap, server: number) =>
    swap.losing([server], async () => {
      await swap.stopServer(server, 'SIGKILL')
      await swap.startServer(server)
    }),
  // At the switch, which is the client's bridge: what the server sends meanwhile is lost on the wire. With its own
  // interface down it has no route either, and rxe's queue pair 1 does not recover from a datagram without one:
  // then no program on that host can connect any more, until the driver is reloaded.
  'link down': (swap: ReplicatedSwap, server: number) =>
    swap.losing([server], () => swap.cut(server, linkDownMs)),
  'server restarted': (swap: ReplicatedSwap, server: number) =>
    swap.losing([server], async () => {
      await swap.stopServer(server, 'SIGTERM')
      await swap.startServer(server)
    }),
  // Without another copy: its memory is there when it goes on, as behind a link that is down.
  'server stands still': (swap: ReplicatedSwap, server: number) =>
    swap.losing([server], () => swap.halt(server, stillMs)),
  'client killed': async (swap: ReplicatedSwap) => {
    await swap.killClient()
    await swap.startClient()
  },
  'control throws': async (swap: ReplicatedSwap) => {
    await swap.failControl()
    await swap.startClient()
  },
  // With as many replicas as hosts nothing but spare slabs can go, and the command says so by its status.
  'memory wanted back': async (swap: ReplicatedSwap, server: number) => {
    const reclaim = ['node', 'packages/swap-server/dist/cli.js', 'reclaim']
    const { stdout } = await swap
      .host(server)
      .exec([...reclaim, '16M', '--wait', '30'], { deadlineMs: 60_000 })
    await swap.host(server).run([...reclaim, '0'])
    return stdout.trim()
  },
  // With a backup only: it is all that is left of the volume then.
  'all servers killed': (swap: ReplicatedSwap) =>
    swap.losing(swap.servers, async () => {
      await swap.stopServers('SIGKILL')
      await swap.startServers()
    }),
  'everything killed': (swap: ReplicatedSwap) =>
    swap.losing(swap.servers, async () => {
      await Promise.all([swap.stopServers('SIGKILL'), swap.killClient()])
      await swap.startClient()
      await swap.startServers()
    }),
} as const

/** What costs no copy of a page. */
const harmless: readonly FaultKind[] = ['client killed', 'control throws', 'memory wanted back']
const ofOneServer: readonly FaultKind[] = ['server killed', 'link down', 'server restarted']
/** What a volume survives: with replicas, with a backup in their place, or with neither. */
const survivable: Readonly<Record<'replicas' | 'backup' | 'alone', readonly FaultKind[]>> = {
  replicas: [...ofOneServer, ...harmless],
  backup: [...ofOneServer, ...harmless, 'all servers killed', 'everything killed'],
  alone: ['link down', 'server stands still', ...harmless],
}
/** Of one server, which the others are not. */
const ofServer: readonly FaultKind[] = [...ofOneServer, 'server stands still', 'memory wanted back']
/** How long no server has the pages, in milliseconds, without another copy. */
const absence: Partial<Record<FaultKind, number>> = {
  'link down': linkDownMs,
  'server stands still': stillMs,
}

/** Where there is one replica. */
const costsData = ({ kind }: Fault): boolean => !harmless.includes(kind)

const volumeMiB = 96

const copiesOf = ({ replicas, backup }: KillAnythingOptions): keyof typeof survivable =>
  replicas > 1 ? 'replicas' : backup ? 'backup' : 'alone'

/** The faults that come. @throws UsageError: the only one is none of them */
function kindsOf(options: KillAnythingOptions): readonly FaultKind[] {
  const kinds = survivable[copiesOf(options)]
  const { only } = options
  if (only === undefined) return kinds
  const chosen = kinds.filter((kind) => kind === only)
  if (chosen.length === 0) throw new UsageError(`--only is one of: ${kinds.join(', ')}`)
  return chosen
}

/**
 * A client guest swaps to several server guests, each page in replicas or on its own disk besides, while one thing
 * after another is killed, cut off or asked for its memory, the next when the volume is whole again.
 */
export async function killAnything(
  parts: LabParts,
  star: GuestStar,
  options: KillAnythingOptions,
  print: (line: string) => void = () => {},
): Promise<KillAnything> {
  const { seconds, seed, mebibytes, servers, replicas, backup, ublk } = options
  const program = await ensurePageChurn()
  print(`${servers} servers, ${replicas} replicas${backup ? ' and a backup' : ''}; seed ${seed}`)
  if (backup) await star.client.run(['sh', join(guestScripts, 'disk.sh')])
  const swap = await ReplicatedSwap.attach(star, {
    memory: '192M',
    slabSize: '8M',
    size: `${volumeMiB}M`,
    device: await loadDriver(star.client, parts, ublk),
    options: [
      ...['--replicas', String(replicas), '--state', '/run/rdmakit/kill-anything'],
      ...(backup ? ['--backup', '/dev/vda', '--ack', 'backup'] : []),
    ],
  })
  const churn = star.client.start([
    'sh',
    join(guestScripts, 'load', 'churn.sh'),
    program,
    `${mebibytes}M`,
    String((mebibytes / 2) * 2 ** 20),
  ])
  try {
    await churn.waitForLine(/^churning/, 120_000)
    const swapped = await swappedPages(star)
    const random = randomNumbers(seed)
    const kinds = kindsOf(options)
    const statuses = new Map<number, ClientStatus>()
    const done: KillAnything['faults'] = []
    let status = await swap.whole()
    const start = Date.now()
    const over = () =>
      options.faults > 0
        ? done.length === options.faults
        : done.length >= kinds.length && Date.now() - start >= 1000 * seconds
    for (let order: FaultKind[] = []; !over(); ) {
      if (order.length === 0) order = shuffled(kinds, random)
      const kind = order.pop() as FaultKind
      // One that has something to lose.
      const holders = swap.holders(status)
      const server = holders[Math.floor(random() * holders.length)] as number
      const stalls = stallsOf(churn).length
      const began = Date.now()
      print(ofServer.includes(kind) ? `${kind}: server ${server}` : kind)
      const away = swap.clientAway
      const told = await faults[kind](swap, server)
      if (told) print(`  ${told}`)
      status = await swap.whole()
      statuses.set(status.pid, status)
      // The step that the fault has stopped must end too.
      const steps = stepsTold(churn)
      await until('the program goes on', 180_000, () => stepsTold(churn) > steps)
      const longestStall = Math.max(0, ...stallsOf(churn).slice(stalls))
      const fault: Fault = {
        kind,
        ...(ofServer.includes(kind) && { server }),
        seconds: (Date.now() - began) / 1000,
        away: swap.clientAway - away + (copiesOf(options) === 'alone' ? (absence[kind] ?? 0) / 1000 : 0),
        longestStall,
      }
      done.push(fault)
      print(`  ${describe(fault)}`)
    }
    const after = await swappedPages(star)
    const end = await churn.stop(180_000)
    const report = /^\{.*\}$/m.exec(end.stdout)?.[0]
    if (report === undefined) throw new Error(`page-churn ended with ${end.status ?? `signal ${end.signal}`}`)
    await swap.detach()
    return {
      seed,
      seconds: (Date.now() - start) / 1000,
      faults: done,
      ...(JSON.parse(report) as Pick<KillAnything, 'pages' | 'steps' | 'wrongPages' | 'longestStall'>),
      pagesIn: after.in - swapped.in,
      pagesOut: after.out - swapped.out,
      ...(backup && { backup: backupUse([...statuses.values()]) }),
      ioErrors: (await star.client.run('dmesg')).split('\n').filter((line) => ioError.test(line)),
    }
  } catch (error) {
    const kernels = await Promise.all([star.client, ...star.servers].map(kernelSays))
    print([swap.complaints, ...kernels.reverse(), tail(churn.stdout), tail(swap.said)].join('\n'))
    throw error
  }
}

/** The end of a guest's kernel log, with the stacks of what is blocked there. */
async function kernelSays(guest: Guest): Promise<string> {
  const { stdout } = await guest
    .exec('echo w >/proc/sysrq-trigger; dmesg', { deadlineMs: 30_000 })
    .catch((error: Error) => ({ stdout: error.message }))
  return `${guest.name}'s kernel:\n${tail(stdout)}`
}

function describe({ seconds, away, longestStall }: Fault): string {
  return (
    `whole after ${seconds.toFixed(1)} s, ` +
    (longestStall === 0 ? 'no step above 1 s' : `longest step ${longestStall.toFixed(1)} s`) +
    (away === 0 ? '' : `, without a client or its server for ${away.toFixed(1)} s`)
  )
}

/** Over all lives of the client, of which each counts for itself. */
function backupUse(clients: readonly ClientStatus[]): BackupUse {
  const backups = clients.map(({ statistics }) => statistics.backup)
  const sum = (of: 'bytesRead' | 'bytesWritten') =>
    backups.reduce((bytes, each) => bytes + (each?.[of] ?? 0), 0)
  return {
    bytesRead: sum('bytesRead'),
    bytesWritten: sum('bytesWritten'),
    working: backups.every((each) => each?.working),
  }
}

/** The violations that a run showed; empty if there are none. */
export function faultsOf(run: KillAnything): string[] {
  return violated([
    [run.wrongPages === 0, `${run.wrongPages} wrong pages`],
    [run.ioErrors.length === 0, `I/O errors: ${run.ioErrors.join('; ')}`],
    ...run.faults.map(({ kind, away, longestStall }): [boolean, string] => [
      longestStall <= stallDeadline + away,
      `${kind}: a step took ${longestStall} s, more than ${stallDeadline} + ${away} s`,
    ]),
    [run.backup?.working !== false, 'the backup failed'],
    [
      run.backup === undefined || run.backup.bytesRead > 0 || !run.faults.some(costsData),
      'nothing was read from the backup',
    ],
    [run.pagesIn >= 1000 && run.pagesOut >= 1000, 'the program hardly swapped'],
  ])
}

/** A client guest and the servers that it may swap to; they can be used for one trial after another. */
export const bootTrialGuests = (parts: LabParts, servers: number): Promise<GuestStar> =>
  GuestStar.boot(parts, {
    servers,
    server: { memoryMiB: 768 },
    client: { memoryMiB: 1024, diskMiB: volumeMiB },
  })

/** The command: prints what it saw; 0 when all is well. */
export async function killAnythingCommand(
  parts: LabParts,
  options: KillAnythingOptions,
  say: (line: string) => void,
): Promise<number> {
  kindsOf(options)
  await using star = await bootTrialGuests(parts, options.servers)
  const run = await killAnything(parts, star, options, say)
  return conclude(run, faultsOf(run), say)
}

const short = { seconds: 0, faults: 2, mebibytes: 40, servers: 2, backup: false }
/**
 * Of each front one short trial: a server and the client are killed; then the client's control throws, and all servers
 * are killed.
 */
const shortTrials: readonly KillAnythingOptions[] = [
  { ...short, seed: 8, replicas: 2, ublk: false },
  { ...short, seed: 10, replicas: 1, backup: true, ublk: true },
]

/** One after another on the same guests; 0 when all is well. */
export async function shortTrialsCommand(parts: LabParts, say: (line: string) => void): Promise<number> {
  await using star = await bootTrialGuests(parts, short.servers)
  let status = 0
  for (const options of shortTrials) {
    const run = await killAnything(parts, star, options, say)
    status ||= conclude(run, faultsOf(run), say)
  }
  return status
}

async function swappedPages({ client }: GuestStar): Promise<{ in: number; out: number }> {
  const vmstat = await client.run(['cat', '/proc/vmstat'])
  const pages = (name: string): number => Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(vmstat)?.[1])
  return { in: pages('pswpin'), out: pages('pswpout') }
}
