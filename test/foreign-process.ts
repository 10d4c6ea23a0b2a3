import { readFileSync } from 'node:fs'

/**
 * A process that is no child of this one, by its number. The system reuses numbers, on a busy machine within
 * minutes, so a number alone could end another process.
 */
export class ForeignProcess {
  readonly pid: number
  readonly #started: string | undefined

  constructor(pid: number) {
    this.pid = pid
    this.#started = startOf(pid)
  }

  /** It has not ended since it was found. */
  get isRunning(): boolean {
    return this.#started !== undefined && startOf(this.pid) === this.#started
  }

  /** Ends it, if it is still there. */
  kill(): void {
    if (!this.isRunning) return
    try {
      process.kill(this.pid, 'SIGKILL')
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code !== 'ESRCH') throw failure
    }
  }
}

/** When it started, in ticks since the system did: field 22 of /proc/PID/stat (proc(5)). @returns undefined:
 * no process has it */
function startOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // Its name, in parentheses, may have blanks.
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  } catch {
    return undefined
  }
}
