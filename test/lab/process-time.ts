import { readdirSync, readFileSync } from 'node:fs'

/** Ticks of /proc/PID/stat in a second: sysconf(_SC_CLK_TCK), 100 on every Linux that Debian builds. */
const ticksPerSecond = 100

export interface CpuTime {
  /** seconds */
  user: number
  system: number
}

/** CPU time that the one process of this machine whose command line contains `part` has used. */
export function cpuTimeOf(part: string): CpuTime {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && commandLine(name).includes(part))
  const [pid] = pids
  if (pid === undefined || pids.length > 1) throw new Error(`${pids.length} processes run ${part}`)
  // proc(5): the name in field 2 may hold anything, so count from behind its bracket.
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /, '')
    .split(' ')
  const [user, system] = [Number(fields[11]), Number(fields[12])]
  return { user: user / ticksPerSecond, system: system / ticksPerSecond }
}

function commandLine(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
  } catch {
    return '' // It ended between the listing and the look.
  }
}
