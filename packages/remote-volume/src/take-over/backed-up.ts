import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeOptions } from '../volume/volume-options.js'

/** Whether a slab can do without its servers after a take-over: what was answered is in the file. */
export function backedUp(
  { backup, engine: given }: Pick<VolumeOptions, 'backup' | 'engine'>,
  engine: Pick<VolumeEngine, 'lackingInBackup' | 'missingInBackup'>,
): (slab: number) => boolean {
  if (backup === undefined) return () => false
  // A WRITE was answered when the file had it, so one that was open is all that may be missing, and the kernel repeats
  // it. More is missing from a file that had failed, or is another one, or is being caught up.
  if (given?.acknowledge === 'backup') return (slab) => engine.lackingInBackup(slab) === 0
  return (slab) => engine.missingInBackup(slab) === 0
}
