import type { VolumeServer } from '@rdmakit/remote-volume'
import type { EngineStatistics } from '../engine/block-engine.js'
import type { Volume } from '../engine/block-volume.js'
import type { ClientStatus } from './control.js'
import { impairment } from './last-resort.js'

/** What `nbd-client status` shows of this process. */
export function statusOf(
  volume: Volume,
  fixed: Pick<ClientStatus, 'mode' | 'target' | 'identifier' | 'swap' | 'state'>,
): ClientStatus {
  const statistics = volume.engine.statistics()
  const impaired = impairment()
  return {
    pid: process.pid,
    ...fixed,
    size: volume.size,
    uptimeSeconds: Math.round(process.uptime()),
    ...(impaired && { impaired }),
    replicas: volume.replicas,
    slabs: volume.slabs,
    ...(volume.thin === undefined
      ? {}
      : { thin: { unmapped: volume.unmapped, spares: volume.thin.spares, given: volume.thin.given } }),
    migration: { waiting: volume.migration.waiting, moved: volume.migration.moved },
    servers: lastIncarnations(volume).map(({ index, uri, slabs, spares, failure, away }) => ({
      index,
      uri,
      slabs,
      spares,
      state: failure === undefined ? 'up' : away ? 'away' : 'failed',
      ...(failure === undefined ? {} : { reason: failure }),
    })),
    statistics,
  }
}

/** A server that came back is another one with the same addresses; one that never took part has none. */
export function lastIncarnations({ servers }: Volume): VolumeServer[] {
  return servers.filter(
    (server) =>
      server.joining === undefined && !server.isVacant && !servers.some((other) => server.isBefore(other)),
  )
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
    pagesReadAhead: sum((lane) => lane.pagesReadAhead),
    bytesFromReadAhead: sum((lane) => lane.bytesFromReadAhead),
    pagesCompressed: sum((lane) => lane.pagesCompressed),
    bytesSpared: sum((lane) => lane.bytesSpared),
    // Counts lanes that have something to compress.
    compressing: sum((lane) => Number(lane.compressing && lane.writes > 0)),
    writing: sum((lane) => Number(lane.writes > 0)),
    pagesWrong: sum((lane) => lane.pagesWrong),
    pagesRepaired: sum((lane) => lane.pagesRepaired),
  }
}
