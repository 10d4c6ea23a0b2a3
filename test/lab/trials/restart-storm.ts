import { type RunningProcess, type Shell, tail } from '../base/shell.js'
import { until } from '../base/until.js'
import type { LabParts } from '../machine/lab-parts.js'
import { ensurePageChurn } from '../machine/native.js'
import { GuestPair } from '../machine/pair.js'
import { loadDriver, rdmakitSwap } from '../swap/remote-swap.js'
import { conclude, ioError, stepsTold, violated } from './trial.js'

interface Restart {
  /** of memory when it was killed: 0 to 1 */
  used: number
  /** seconds from its death until the next one had attached */
  away: number
  /** seconds from its death until every program had gone on */
  standstill: number
}

export interface RestartStormOptions {
  /** how often nbd-client is killed */
  restarts: number
  /** over a device of ublk, not nbd */
  ublk: boolean
  /** RDMA in user space over TCP, not Soft-RoCE */
  iwarp: boolean
}

interface RestartStorm {
  restarts: readonly Restart[]
  /** of all programs: pages verified one by one, and those that were wrong */
  steps: number
  wrongPages: number
  /** seconds of the longest step, each of which waits for a page or two */
  longestStep: number
  pagesIn: number
  pagesOut: number
  /** that the kernel's log has */
  oomKills: number
  ioErrors: number
  /** tasks that the kernel says hung for 30 s */
  hungTasks: number
}

interface Memory {
  used: number
  pagesIn: number
  pagesOut: number
}

const programs = 4
/** Of the client's memory, all programs together. */
const wanted = 1.2
const hungAfterSeconds = 30
const startDeadlineMs = 120_000
/** Each page is verified once more at the end. */
const endDeadlineMs = 600_000
/** Pages in and out between one restart and the next. */
const pagesBetween = 10_000

/**
 * Two guests: four programs want 1.2 times the client's memory and swap to the server's, while nbd-client is killed and
 * started again: the next one has to start where no memory is free and none can be swapped out.
 */
async function restartStorm(
  parts: LabParts,
  { restarts, ublk, iwarp }: RestartStormOptions,
  print: (line: string) => void,
): Promise<RestartStorm> {
  const program = await ensurePageChurn()
  await using pair = await GuestPair.boot(parts, {
    server: { memoryMiB: 1536 },
    client: { memoryMiB: 1024 },
  })
  const { server, client } = pair
  const device = await loadDriver(client, parts, ublk)
  await client.run(`echo ${hungAfterSeconds} >/proc/sys/kernel/hung_task_timeout_secs`)
  const uri = `${iwarp ? 'iwarp' : 'rdma'}://${GuestPair.serverAddress}:7471`
  const service = rdmakitSwap(uri, '1G', '1000M', device)
  const serving = server.start(service.serve)
  await serving.waitForLine(service.listening, startDeadlineMs)
  let said = ''
  const start = async (): Promise<RunningProcess> => {
    const attaching = client.start([...(service.attach as string[]), '--state', '/run/rdmakit/storm'])
    await attaching.waitForLine(service.attached, startDeadlineMs).catch((error: Error) => {
      throw new Error(`${error.message}\n${attaching.stderr}`)
    })
    return attaching
  }
  let swap = await start()
  const total = Number(/^MemTotal: +(\d+) kB$/m.exec(await client.run('cat /proc/meminfo'))?.[1])
  const each = `${Math.ceil((wanted * total) / programs / 1024)}M`
  const before = await memory(client)
  const churns = Array.from({ length: programs }, () => client.start([program, '--bytes', each]))
  try {
    print(`remote swap is on; ${programs} programs of ${each} on ${Math.floor(total / 1024)} MiB`)
    await Promise.all(churns.map((churn) => churn.waitForLine(/^churning/, endDeadlineMs)))
    const done: Restart[] = []
    while (done.length < restarts) {
      const { pagesIn, pagesOut } = await memory(client)
      let now: Memory | undefined
      // However slow the machine is; but it goes on.
      for (let moved = 0; moved < pagesBetween; ) {
        const before = moved
        await until('the guest swaps', startDeadlineMs, async () => {
          now = await memory(client)
          moved = Math.min(now.pagesIn - pagesIn, now.pagesOut - pagesOut)
          return moved > before
        })
      }
      const killed = Date.now()
      await swap.stop(startDeadlineMs, 'SIGKILL')
      said += swap.stderr
      swap = await start()
      const away = (Date.now() - killed) / 1000
      const told = churns.map(stepsTold)
      await until('every program goes on', startDeadlineMs, () =>
        churns.every((churn, i) => stepsTold(churn) > (told[i] as number)),
      )
      const standstill = (Date.now() - killed) / 1000
      done.push({ used: now?.used ?? 0, away, standstill })
      print(
        `killed and attached again after ${away.toFixed(1)} s, all go on after ${standstill.toFixed(1)} s`,
      )
    }
    const after = await memory(client)
    // Together, or the last would have the memory of the first.
    const reports = await Promise.all(churns.map(async (churn) => reportOf(await churn.stop(endDeadlineMs))))
    for (const end of [await swap.stop(endDeadlineMs), await serving.stop()])
      if (end.status !== 0) throw new Error(`status ${end.status ?? end.signal}: ${end.stderr}`)
    const kernel = await client.run('dmesg; grep oom_kill /proc/vmstat')
    return {
      restarts: done,
      steps: reports.reduce((sum, { steps }) => sum + steps, 0),
      wrongPages: reports.reduce((sum, { wrongPages }) => sum + wrongPages, 0),
      longestStep: Math.max(...reports.map(({ longestStall }) => longestStall)),
      pagesIn: after.pagesIn - before.pagesIn,
      pagesOut: after.pagesOut - before.pagesOut,
      oomKills: Number(/^oom_kill (\d+)$/m.exec(kernel)?.[1]),
      ioErrors: kernel.split('\n').filter((line) => ioError.test(line)).length,
      hungTasks: kernel.match(/blocked for more than/g)?.length ?? 0,
    }
  } catch (error) {
    const { stdout } = await client.exec('echo w >/proc/sysrq-trigger; dmesg', { deadlineMs: 30_000 })
    print(
      [stdout, ...churns.map(({ stdout }) => stdout), said + swap.stderr]
        .map((text) => tail(text))
        .join('\n'),
    )
    throw error
  }
}

async function memory(shell: Shell): Promise<Memory> {
  const text = await shell.run('cat /proc/meminfo /proc/vmstat')
  const value = (name: string) => Number(new RegExp(`^${name}:? +(\\d+)`, 'm').exec(text)?.[1])
  return {
    used: 1 - value('MemAvailable') / value('MemTotal'),
    pagesIn: value('pswpin'),
    pagesOut: value('pswpout'),
  }
}

interface Report {
  steps: number
  wrongPages: number
  longestStall: number
}

function reportOf(end: Awaited<RunningProcess['exited']>): Report {
  const report = /^\{.*\}$/m.exec(end.stdout)?.[0]
  if (report === undefined) throw new Error(`page-churn ended with ${end.status ?? `signal ${end.signal}`}`)
  return JSON.parse(report) as Report
}

/** The violations that it showed; empty if there are none. */
function faultsOf(storm: RestartStorm): string[] {
  const used = Math.min(...storm.restarts.map((restart) => restart.used))
  return violated([
    [storm.wrongPages === 0, `${storm.wrongPages} wrong pages`],
    [storm.ioErrors === 0, `${storm.ioErrors} I/O errors`],
    [storm.oomKills === 0, `${storm.oomKills} processes killed for lack of memory`],
    [storm.hungTasks === 0, `${storm.hungTasks} tasks hung for ${hungAfterSeconds} s`],
    [used >= 0.95, `only ${(100 * used).toFixed(1)} % of the memory were in use`],
  ])
}

/** The command: prints what it saw; 0 when all is well. */
export async function restartStormCommand(
  parts: LabParts,
  options: RestartStormOptions,
  say: (line: string) => void,
): Promise<number> {
  const storm = await restartStorm(parts, options, say)
  return conclude(storm, faultsOf(storm), say)
}
