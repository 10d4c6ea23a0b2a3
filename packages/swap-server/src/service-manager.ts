import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

/** Above the 5 s that systemd-notify waits for the manager to have read it. */
const TIMEOUT_MS = 10_000
/** For the end of a server, behind all that it waits for. */
const END_MS = 30_000

/**
 * Tells the service manager that started this process, if there is one that wants to know, that it is ready
 * (sd_notify(3), Type=notify). Node.js has no datagram sockets of the Unix family, so systemd's own tool says it for
 * this process: the unit needs NotifyAccess=all.
 * @param status one line for "systemctl status"
 * @param failed gets why it was not told, on which the manager will end this process when its patience does
 */
export async function notifyReady(status: string, failed: (reason: string) => void): Promise<void> {
  await notify(['READY=1', `STATUS=${status}`], failed)
}

/** Tells it that another process of the service goes on for this one, which is about to end. See {@link notifyReady}. */
export async function notifyMainProcess(pid: number, failed: (reason: string) => void): Promise<void> {
  await notify([`MAINPID=${pid}`], failed)
}

/** Tells it one line for "systemctl status". See {@link notifyReady}. */
export async function notifyStatus(status: string, failed: (reason: string) => void): Promise<void> {
  await notify([`STATUS=${status}`], failed)
}

/** Tells it that this process ends, which may take `milliseconds` more than the manager would wait by itself. */
export async function notifyStopping(milliseconds: number, failed: (reason: string) => void): Promise<void> {
  // Above what is waited for: closing takes time, too.
  await notify(['STOPPING=1', `EXTEND_TIMEOUT_USEC=${1000 * (milliseconds + END_MS)}`], failed)
}

async function notify(words: string[], failed: (reason: string) => void): Promise<void> {
  if (!process.env.NOTIFY_SOCKET) return
  try {
    await promisify(execFile)('systemd-notify', words, { timeout: TIMEOUT_MS })
  } catch (failure) {
    failed(`systemd-notify: ${(failure as Error).message.trim()}`)
  }
}
