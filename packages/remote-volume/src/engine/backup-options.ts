const PAGE = 4096
/** What packages/remote-volume/native/backup/backup_port.h allows for one lane. */
const MIN_PAGES = 128
const MAX_PAGES = 4096

/** A copy of the volume on this machine, read when no server has a page any more (docs/page-service/backup.md). */
export interface BackupOptions {
  /** a regular file, made when it is missing, or a block device; used by nobody else */
  readonly file: string
  /** bytes of written pages that may wait for the file, shared out evenly to the lanes; default 16 MiB */
  readonly queue?: number
  /** reserve no room in the file: it grows as pages come, and a full disk ends the backup; default false */
  readonly sparse?: boolean
  /**
   * File that keeps what the backup has, so that a successor of this process knows it. Default: nothing of an
   * existing backup counts.
   */
  readonly map?: string
}

/** How many pages of the queue each of `lanes` lanes gets. */
export function pagesOfLane(queue: number, lanes: number): number {
  return Math.min(MAX_PAGES, Math.max(MIN_PAGES, Math.floor(queue / PAGE / lanes)))
}
