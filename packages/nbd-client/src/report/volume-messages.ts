import { formatSize } from '@rdmakit/operator-kit'
import type { Adopted } from '@rdmakit/remote-volume'
import type { Volume } from '../engine/block-volume.js'
import { say } from './log.js'

const PAGE = 4096

/** Reports each lost server, once, with the lost pages. */
export function reportFailures(volume: Volume): void {
  volume.onServerFailure(({ server, reason, degraded, backedUp, away, lost }) => {
    const consequences = [
      ...(away > 0 ? [`${formatSize(away)} of the volume have no other copy and wait for it`] : []),
      ...(backedUp > 0 ? [`${formatSize(backedUp)} of the volume are read from the backup`] : []),
      ...(lost > 0
        ? [`${formatSize(lost)} of the volume now answer with I/O errors`]
        : away > 0
          ? []
          : ['nothing of the volume is lost']),
      ...(degraded > 0
        ? [`${formatSize(degraded)} have one replica less until they are refilled elsewhere`]
        : []),
    ]
    say(`lost ${server.uri}: ${reason}; ${consequences.join('; ')}`)
  })
  volume.onBackupFailure((reason) => {
    const lost = volume.slabs.lost * volume.engine.slabSize
    const consequence =
      lost === 0 ? '' : `; ${formatSize(lost)} of it had no other copy and answer with I/O errors`
    say(`the backup failed: ${reason}; the volume continues without it${consequence}`)
  })
}

/** Reports the outcome of a volume's take-over. */
export function sayAdopted({ backedUp, missing, lost, degraded }: Adopted, slabSize: number): void {
  if (backedUp > 0) say(`${formatSize(backedUp * slabSize)} of the volume are read from the backup`)
  if (missing > 0)
    say(`${formatSize(missing * PAGE)} of it are missing: I/O errors until they are written again`)
  if (lost > 0) say(`${formatSize(lost * slabSize)} of the volume are lost and answer with I/O errors`)
  if (degraded > 0) say(`${formatSize(degraded * slabSize)} have one replica less until they are refilled`)
}

/** Lines about wrong pages at most; the status counts all of them. */
const WRONG_PAGES_TOLD = 100

/** Reports pages that did not match their checksum. */
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
    tell(server, page, 'no correct copy is left, so it answers with I/O errors until it is written again'),
  )
}
