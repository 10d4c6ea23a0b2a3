import { formatSize, LossyLines } from '@rdmakit/operator-kit'
import type { Adopted, VolumeServer } from '@rdmakit/remote-volume'
import type { EngineStatistics } from '../engine/block-engine.js'
import type { Volume } from '../engine/block-volume.js'
import type { ClientStatus } from './control.js'
import { impairment } from './last-resort.js'

const PAGE = 4096

const lineOf = (text: string) => `nbd-client: ${text}\n`
const log = new LossyLines(
  () => process.stderr,
  (count) => lineOf(`${count} lines were lost: nobody read them`),
)

/** Lines for people on stderr. Nothing here is on the page path, and nothing waits for who reads them. */
export function say(line: string): void {
  log.write(lineOf(line))
}

/** Tells of each lost server, once, with what is lost. */
export function reportFailures(volume: Volume): void {
  volume.onServerFailure(({ server, reason, degraded, backedUp, away, lost }) => {
    const consequences = [
      ...(away > 0 ? [`${formatSize(away)} of the volume are nowhere else and wait for it`] : []),
      ...(backedUp > 0 ? [`${formatSize(backedUp)} of the volume are read from the backup`] : []),
      ...(lost > 0
        ? [`${formatSize(lost)} of the volume now answer with I/O errors`]
        : away > 0
          ? []
          : ['nothing of the volume is lost']),
      ...(degraded > 0
        ? [`${formatSize(degraded)} have a replica less until they are refilled elsewhere`]
        : []),
    ]
    say(`lost ${server.uri}: ${reason}; ${consequences.join('; ')}`)
  })
  volume.onBackupFailure((reason) => {
    const lost = volume.slabs.lost * volume.engine.slabSize
    const consequence =
      lost === 0 ? '' : `; ${formatSize(lost)} of it were nowhere else and answer with I/O errors`
    say(`the backup failed: ${reason}; the volume goes on without it${consequence}`)
  })
}

/** Tells what of a volume that was taken over is in the backup only. */
export function sayBackup({ backedUp, missing }: Adopted, slabSize: number): void {
  if (backedUp > 0) say(`${formatSize(backedUp * slabSize)} of the volume are read from the backup`)
  if (missing > 0)
    say(`${formatSize(missing * PAGE)} of it are not there: I/O errors until they are written anew`)
}

/** Lines about wrong pages at most; the status counts all of them. */
const WRONG_PAGES_TOLD = 100

/** Tells of pages that did not match their checksum. */
export function reportWrongPages(volume: Volume): void {
  let told = 0
  const tell = (server: number | null, page: number, outcome: string) => {
    if (++told > WRONG_PAGES_TOLD) return
    const where = server === null ? 'the backup' : (volume.servers[server]?.uri ?? `server ${server}`)
    const last = told === WRONG_PAGES_TOLD ? '; more are counted in the status' : ''
    say(`page ${page} was wrong at ${where}: ${outcome}${last}`)
  }
  volume.engine.on('pageRepaired', ({ server, page }) => tell(server, page, 'repaired from another replica'))
  volume.engine.on('pageLost', ({ server, page }) =>
    tell(server, page, 'nobody has the right bytes, so it answers with I/O errors until it is written anew'),
  )
}

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
    // Of those that have something to compress.
    compressing: sum((lane) => Number(lane.compressing && lane.writes > 0)),
    writing: sum((lane) => Number(lane.writes > 0)),
    pagesWrong: sum((lane) => lane.pagesWrong),
    pagesRepaired: sum((lane) => lane.pagesRepaired),
  }
}
