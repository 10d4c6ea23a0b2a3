import type { ControlSocket } from '@rdmakit/operator-kit'
import { notifyReady } from '@rdmakit/swap-server/internal'
import type { Volume } from '../engine/block-volume.js'
import { statusOf } from '../report/client-status.js'
import { openControlSocket } from '../report/control.js'
import { holdsNoPages, holdsPages } from '../report/last-resort.js'
import { say } from '../report/log.js'
import { reportFailures, reportWrongPages } from '../report/volume-messages.js'
import type { Serving } from './serve-options.js'

/** Serves an open volume until `signal` aborts or nothing of it is left. @returns the process's exit status */
export async function serveVolume(volume: Volume, options: Serving): Promise<number> {
  let control: ControlSocket | undefined
  holdsPages(options.state !== undefined)
  try {
    reportFailures(volume)
    reportWrongPages(volume)
    const { uri } = options.place
    volume.engine.acceptClients()
    const stopped = new Promise<number>((resolve) => {
      if (options.signal.aborted) resolve(0)
      options.signal.addEventListener('abort', () => resolve(0), { once: true })
      volume.onFenced((failure) => {
        say(failure.message)
        resolve(failure.status)
      })
      // With its last server the volume has lost its data: in-flight requests get EIO, and a new start
      // makes a new volume. Unless another process has it.
      const check = () => {
        if (volume.lost) void volume.askFenced().then((fenced) => resolve(fenced?.status ?? 1))
      }
      volume.onServerFailure(check)
      volume.onBackupFailure(check)
      check()
    })
    control = await openControlSocket(
      () => statusOf(volume, { mode: 'serve', target: uri, swap: false }),
      () => process.kill(process.pid, 'SIGTERM'),
    )
    volume.engine.on('listenerFailed', ({ address: where, reason }) =>
      say(`listener ${where} failed: ${reason}`),
    )
    const metrics = options.place.measure(volume)
    if (metrics !== undefined) process.stdout.write(`metrics ${metrics}\n`)
    process.stdout.write(`ready ${uri}\n`)
    await notifyReady(`serves ${uri}`, say)
    return await stopped
  } finally {
    control?.close()
    holdsNoPages()
  }
}
