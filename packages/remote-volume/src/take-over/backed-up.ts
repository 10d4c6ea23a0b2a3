import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeOptions } from '../volume/volume-options.js'

const PAGE = 4096

/** Whether a slab can do without its servers after a take-over: what was answered is in the file. */
export function backedUp(
  { backup, engine: given }: Pick<VolumeOptions, 'backup' | 'engine'>,
  engine: Pick<VolumeEngine, 'leftClaimed' | 'missingInBackup' | 'slabSize'>,
): (slab: number) => boolean {
  if (backup === undefined) return () => false
  // A WRITE was answered when the file had it, so one that was open is all that may be missing, and the kernel repeats
  // it. More is missing from a file that had failed, or is another one.
  const open = given?.acknowledge === 'backup' ? pagesBySlab(engine) : new Map<number, number>()
  return (slab) => engine.missingInBackup(slab) <= (open.get(slab) ?? 0)
}

function pagesBySlab({ leftClaimed, slabSize }: Pick<VolumeEngine, 'leftClaimed' | 'slabSize'>) {
  const pages = new Map<number, number>()
  for (const page of leftClaimed) {
    const slab = Math.floor((page * PAGE) / slabSize)
    pages.set(slab, (pages.get(slab) ?? 0) + 1)
  }
  return pages
}
