import type { Shell } from './shell.js'

/** Ticks of /proc/PID/stat and /proc/stat in a second: sysconf(_SC_CLK_TCK), 100 on every Linux that Debian builds. */
const ticksPerSecond = 100

export interface CpuTime {
  /** seconds */
  user: number
  system: number
}

/** Of the one process whose command line contains `part`. */
async function processOf(shell: Shell, part: string): Promise<string> {
  // The first letter in brackets: the pattern does not match the command line that it stands in itself.
  const pattern = `[${part.slice(0, 1)}]${part.slice(1)}`
  const found = await shell.exec(`grep -als '${pattern}' /proc/[0-9]*/cmdline`)
  const pids = [...found.stdout.matchAll(/^\/proc\/(\d+)\//gm)].map(([, pid]) => pid)
  const [pid] = pids
  if (pid === undefined || pids.length > 1) throw new Error(`${pids.length} processes run ${part}`)
  return pid
}

/**
 * How often the threads of the one process whose command line contains `part` have waited for something, and so been woken:
 * proc_pid_status(5), voluntary_ctxt_switches. Of threads that it has now.
 */
export async function waitsOf(shell: Shell, part: string): Promise<number> {
  const tasks = await shell.run(`cat /proc/${await processOf(shell, part)}/task/*/status`)
  const counts = [...tasks.matchAll(/^voluntary_ctxt_switches:\s+(\d+)$/gm)].map(([, count]) => Number(count))
  if (counts.length === 0) throw new Error(`no thread of ${part} says how often it has waited`)
  return counts.reduce((sum, count) => sum + count)
}

/** CPU time that the one process whose command line contains `part` has used; all its threads. */
export async function cpuTimeOf(shell: Shell, part: string): Promise<CpuTime> {
  const pid = await processOf(shell, part)
  // proc(5): the name in field 2 may hold anything, so count from behind its bracket.
  const fields = (await shell.run(['cat', `/proc/${pid}/stat`])).replace(/^.*\) /, '').split(' ')
  const [user, system] = [Number(fields[11]), Number(fields[12])]
  return { user: user / ticksPerSecond, system: system / ticksPerSecond }
}

/**
 * Seconds that the processors of a whole machine were busy since its start, for any process: proc(5), user,
 * nice, system, irq and softirq. The work of drivers in the kernel is in no process's time.
 */
export async function busySeconds(shell: Shell): Promise<number> {
  const [first = ''] = (await shell.run(['cat', '/proc/stat'])).split('\n')
  const [user, nice, system, , , irq, softirq] = first.split(/\s+/).slice(1).map(Number)
  const ticks = [user, nice, system, irq, softirq].reduce<number>(
    (sum, time) => sum + (time ?? Number.NaN),
    0,
  )
  return ticks / ticksPerSecond
}
