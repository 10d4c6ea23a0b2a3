import { createRequire } from 'node:module'
import { Socket } from 'node:net'
import { setTimeout as setTimer } from 'node:timers/promises'

/** What the manager may take to read what it is told. */
const TIMEOUT_MS = 10_000
const RETRY_MS = 50
/** For the end of a server, behind all that it waits for. */
const END_MS = 30_000

/**
 * Tells the service manager that started this process, if there is one that wants to know, that it is ready
 * (sd_notify(3), Type=notify).
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

interface Addon {
  /** @returns a descriptor that comes to its end when the manager has read it */
  notifyServiceManager(socket: string, state: string): number
}

async function notify(words: string[], failed: (reason: string) => void): Promise<void> {
  const socket = process.env.NOTIFY_SOCKET
  if (!socket) return
  try {
    const read = new Socket({ fd: await send(socket, words.join('\n')), readable: true, writable: false })
    const ended = new Promise((resolve) =>
      read
        .resume()
        .once('close', resolve)
        .on('error', () => {}),
    )
    // As sd_notify_barrier(3): systemd knows whose message it is for as long as the process is there.
    await Promise.race([ended, setTimer(TIMEOUT_MS, undefined, { ref: false })])
    read.destroy()
  } catch (failure) {
    failed((failure as Error).message)
  }
}

async function send(socket: string, state: string): Promise<number> {
  const addon = createRequire(import.meta.url)('@rdmakit/verbs/addon') as Addon
  const deadline = performance.now() + TIMEOUT_MS
  for (;;) {
    try {
      return addon.notifyServiceManager(socket, state)
    } catch (failure) {
      // Its queue is full of what others tell.
      if ((failure as NodeJS.ErrnoException).code !== 'EAGAIN' || performance.now() > deadline) throw failure
      await setTimer(RETRY_MS)
    }
  }
}
