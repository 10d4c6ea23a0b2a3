import { existsSync } from 'node:fs'
import { serverOf } from './reclaim-command.js'

const POLL_MS = 50

/**
 * Ends a swap-server of this machine as SIGTERM does, `now` without a chance for its clients, and waits for its end: what
 * it waits for it bounds itself.
 * @throws UsageError: no such server, or several
 */
export async function stopServer({
  pid: given,
  now,
}: {
  pid: number | undefined
  now: boolean
}): Promise<void> {
  const { pid } = await serverOf(given)
  // The second one ends what the first one began, and they are told apart by their order: one is both if they merge.
  process.kill(pid, 'SIGTERM')
  if (now) process.kill(pid, 'SIGINT')
  // What a process was is gone with it, also while nobody has waited for it.
  while (existsSync(`/proc/${pid}/exe`)) await new Promise((resolve) => setTimeout(resolve, POLL_MS))
}
