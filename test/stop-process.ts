import type { ChildProcess } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { eventually } from './eventually.js'

/**
 * Stops a process, and resolves when it stands still: one thread takes the signal and stops the others, and on a machine
 * that is short of processors these go on until it has one. SIGCONT lets it go on.
 */
export async function stopProcess(child: ChildProcess): Promise<void> {
  child.kill('SIGSTOP')
  const tasks = `/proc/${child.pid}/task`
  // The state follows the name, which is in parentheses (proc(5)).
  await eventually(() =>
    readdirSync(tasks).every((task) => /\) [Tt] /.test(readFileSync(`${tasks}/${task}/stat`, 'utf8'))),
  )
}
