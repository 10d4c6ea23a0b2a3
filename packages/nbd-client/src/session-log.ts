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
  volume.onServerFailure(({ session, slabs, failure }) =>
    say(
      `lost ${session.uri}: ${failure}; ${formatSize(slabs * session.slabSize)} of the volume now answer with I/O errors`,
    ),
  )
}

export function statusOf(
  volume: Volume,
  fixed: { mode: ClientStatus['mode']; target: string; swap: boolean },
): ClientStatus {
  return {
    pid: process.pid,
    ...fixed,
    size: volume.size,
    uptimeSeconds: Math.round(process.uptime()),
    servers: volume.servers.map(({ session, slabs, failure }) => ({
      uri: session.uri,
      slabs,
      state: failure === undefined ? 'up' : 'failed',
      ...(failure === undefined ? {} : { reason: failure }),
    })),
    statistics: volume.engine.statistics(),
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
