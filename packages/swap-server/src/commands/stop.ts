import { existsSync } from 'node:fs'
import { UsageError } from '@rdmakit/verbs'
import { serverOf } from './reclaim.js'

const POLL_MS = 50

/**
 * Ends a swap-server of this machine as SIGTERM does, `now` without a chance for its clients, and waits for its end.
 * @param options.wait seconds: longer than its --drain; one that hangs is not waited for without end
 * @throws UsageError: no such server, or several; Error: it has not ended in time
 */
export async function stopServer({
  pid: given,
  now,
  wait,
}: {
  pid: number | undefined
  now: boolean
  wait: number
}): Promise<void> {
  const { pid, elsewhere } = await serverOf(given)
  if (elsewhere)
    throw new UsageError(
      `swap-server ${pid} runs in another PID namespace, where it has this number; stop it from there, e.g. in its container`,
    )
  // The second signal ends what the first one began. They differ only in their order: if they merge, one counts as
  // both.
  process.kill(pid, 'SIGTERM')
  if (now) process.kill(pid, 'SIGINT')
  // The process's identity is gone with it, even before it is reaped.
  const deadline = performance.now() + 1000 * wait
  while (existsSync(`/proc/${pid}/exe`)) {
    if (performance.now() > deadline)
      throw new Error(
        `swap-server ${pid} has not ended within ${wait} s; it may still be moving its clients' pages (--wait), or hang: "kill -9 ${pid}" ends it and loses the pages that only it has`,
      )
    await new Promise((resolve) => setTimeout(resolve, POLL_MS))
  }
}
