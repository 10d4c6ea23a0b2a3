import { formatSize } from '@rdmakit/swap-server'
import type { EngineStatistics } from './engine.js'
import type { ClientStatus } from './runtime.js'
import type { Volume } from './volume.js'

/** Lines for people on stderr. Nothing here is on the page path. */
export function say(line: string): void {
  process.stderr.write(`nbd-client: ${line}\n`)
}

/** Tells of each lost server, once, with what is lost. */
export function reportFailures(volume: Volume): void {
  volume.onServerFailure(({ server, reason, degraded, backedUp, lost }) => {
    const consequences = [
      ...(backedUp > 0 ? [`${formatSize(backedUp)} of the volume are read from the backup`] : []),
      lost > 0 || degraded + backedUp === 0
        ? `${formatSize(lost)} of the volume now answer with I/O errors`
        : 'nothing of the volume is lost',
      ...(degraded > 0
        ? [`${formatSize(degraded)} have a replica less until they are refilled elsewhere`]
        : []),
    ]
    say(`lost ${server.session.uri}: ${reason}; ${consequences.join('; ')}`)
  })
  volume.onBackupFailure((reason) => {
    const lost = volume.slabs.lost * volume.engine.slabSize
    const consequence =
      lost === 0 ? '' : `; ${formatSize(lost)} of it were nowhere else and answer with I/O errors`
    say(`the backup failed: ${reason}; the volume goes on without it${consequence}`)
  })
}

export function statusOf(
  volume: Volume,
  fixed: { mode: ClientStatus['mode']; target: string; swap: boolean },
): ClientStatus {
  const { servers } = volume
  const statistics = volume.engine.statistics()
  return {
    pid: process.pid,
    ...fixed,
    size: volume.size,
    uptimeSeconds: Math.round(process.uptime()),
    replicas: volume.replicas,
    slabs: volume.slabs,
    servers: servers
      // A server that came back is another one with the same addresses.
      .filter(({ index, uris }) => !servers.some((later) => later.index > index && later.uris === uris))
      .map(({ session, slabs, spares, failure }) => ({
        uri: session.uri,
        slabs,
        spares,
        state: failure === undefined ? 'up' : 'failed',
        ...(failure === undefined ? {} : { reason: failure }),
      })),
    statistics,
  }
}

/** Sums of all lanes. */
export function totals({ lanes }: EngineStatistics) {
  const sum = (pick: (lane: EngineStatistics['lanes'][number]) => number) =>
    lanes.reduce((total, lane) => total + Number(pick(lane)), 0)
  return {
    reads: sum((lane) => lane.reads),
    writes: sum((lane) => lane.writes),
    bytesRead: sum((lane) => lane.bytesRead),
    bytesWritten: sum((lane) => lane.bytesWritten),
    errors: sum((lane) => lane.errors),
    inFlight: sum((lane) => lane.inFlight),
  }
}
