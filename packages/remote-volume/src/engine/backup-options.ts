const PAGE = 4096
/** What packages/remote-volume/native/backup/backup_port.h allows for one lane. */
const MIN_PAGES = 128
const MAX_PAGES = 4096

/** A copy of the volume on this machine, read when no server has a page any more (docs/page-service/backup.md). */
export interface BackupOptions {
  /** a regular file, created if it is missing, or a block device; for this volume only */
  readonly file: string
  /** bytes of written pages that may wait for the file, shared out evenly to the lanes; default 16 MiB */
  readonly queue?: number | undefined
  /** reserve no disk space: the file grows as pages are written, and a full disk ends the backup; default false */
  readonly sparse?: boolean | undefined
  /**
   * File that records what the backup has, for a successor of this process. Default: the contents of an existing backup do
   * not count.
   */
  readonly map?: string | undefined
}

/** How many pages of the queue each of `lanes` lanes gets. */
export function pagesOfLane(queue: number, lanes: number): number {
  return Math.min(MAX_PAGES, Math.max(MIN_PAGES, Math.floor(queue / PAGE / lanes)))
}
