import { Socket } from 'node:net'
import { setTimeout as setTimer } from 'node:timers/promises'
import { oneLineMessage } from '../output/one-line-message.js'

/** What the manager may take to read what it is told. */
const TIMEOUT_MS = 10_000
const RETRY_MS = 50
/** For the end of a server, behind all that it waits for. */
const END_MS = 30_000

/**
 * Sends `state` to the socket of a service manager (sd_notify(3)). Given by the program, for Node.js has no datagram sockets
 * of the file system.
 * @returns a descriptor that comes to its end when the manager has read it
 * @throws an error of the system: EAGAIN when the manager's queue is full
 */
export type SendNotification = (socket: string, state: string) => number

/** What a service tells its manager. `failed` gets why it was not told. */
export interface ServiceNotifications {
  /**
   * Tells the service manager that started this process, if there is one that wants to know, that it is ready (Type=notify).
   * One that is not told ends this process when its patience does.
   * @param status one line for "systemctl status"
   */
  notifyReady(status: string, failed: (reason: string) => void): Promise<void>
  /** Tells it that another process of the service goes on for this one, which is about to end. */
  notifyMainProcess(pid: number, failed: (reason: string) => void): Promise<void>
  /** Tells it one line for "systemctl status". */
  notifyStatus(status: string, failed: (reason: string) => void): Promise<void>
  /** Tells it that this process ends, which may take `milliseconds` more than the manager would wait by itself. */
  notifyStopping(milliseconds: number, failed: (reason: string) => void): Promise<void>
}

/** The functions that tell the manager of this process by way of `sendNotification`. */
export function serviceNotifications(sendNotification: SendNotification): ServiceNotifications {
  const tell = (words: string[], failed: (reason: string) => void) => notify(sendNotification, words, failed)
  // To the manager a second line of a failure's message would be an assignment of its own.
  const status = (text: string) => `STATUS=${oneLineMessage(text)}`
  return {
    notifyReady: (text, failed) => tell(['READY=1', status(text)], failed),
    notifyMainProcess: (pid, failed) => tell([`MAINPID=${pid}`], failed),
    notifyStatus: (text, failed) => tell([status(text)], failed),
    // Above what is waited for: closing takes time, too.
    notifyStopping: (milliseconds, failed) =>
      tell(['STOPPING=1', `EXTEND_TIMEOUT_USEC=${1000 * (milliseconds + END_MS)}`], failed),
  }
}

async function notify(
  sendNotification: SendNotification,
  words: string[],
  failed: (reason: string) => void,
): Promise<void> {
  const socket = process.env.NOTIFY_SOCKET
  if (!socket) return
  try {
    const read = new Socket({
      fd: await send(sendNotification, socket, words.join('\n')),
      readable: true,
      writable: false,
    })
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

async function send(sendNotification: SendNotification, socket: string, state: string): Promise<number> {
  const deadline = performance.now() + TIMEOUT_MS
  for (;;) {
    try {
      return sendNotification(socket, state)
    } catch (failure) {
      // Its queue is full of what others tell.
      if ((failure as NodeJS.ErrnoException).code !== 'EAGAIN' || performance.now() > deadline) throw failure
      await setTimer(RETRY_MS)
    }
  }
}
