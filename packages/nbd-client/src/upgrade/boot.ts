import { readFileSync } from 'node:fs'
import { EXIT, ExitError } from '@rdmakit/operator-kit'

/** One run of this machine's kernel, from its start to the next. */
export interface Boot {
  /** another one for each boot */
  readonly id: string
  /** when it began, milliseconds since 1970, in whole seconds */
  readonly began: number
}

export const BOOT_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** @throws ExitError: /proc does not say, as in a service with ProcSubset=pid */
export function currentBoot(proc = '/proc'): Boot {
  const file = `${proc}/sys/kernel/random/boot_id`
  try {
    const id = readFileSync(file, 'utf8').trim()
    const seconds = /^btime (\d+)$/m.exec(readFileSync(`${proc}/stat`, 'utf8'))?.[1]
    if (BOOT_ID.test(id) && seconds !== undefined) return { id, began: Number(seconds) * 1000 }
  } catch {
    // Said below.
  }
  throw new ExitError(
    `--state of serve needs to know the machine's boot, and ${file} does not say`,
    EXIT.system,
  )
}

/**
 * Whether what a folder has was written since the machine was started. Of an earlier boot nothing is sure: the maps are
 * memory, which a loss of power leaves on disk as it was at some time before, or not at all.
 * @param kept the boot on record; before there was one, the time of the record has to do
 * @param written when the record was written, and `now`: milliseconds since 1970
 */
export function isOfBoot(kept: string | undefined, written: number, boot: Boot, now: number): boolean {
  if (kept !== undefined) return kept === boot.id
  // From the future: the clock was set back by what ended that boot.
  return written >= boot.began && written <= now
}
