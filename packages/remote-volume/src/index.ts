export type { BackupOptions } from './engine/backup-options.js'
export type { Lane, LaneRequirements, LaneResources, VerbsResource } from './engine/lane.js'
export type * from './engine/volume-addon.js'
export {
  type SlabMapping,
  VolumeEngine,
  type VolumeEvent,
  type VolumeEvents,
  type VolumeStatistics,
} from './engine/volume-engine.js'
export type { VolumeEngineOptions, WaitMode } from './engine/volume-engine-options.js'
export { FencedError } from './servers/fenced-error.js'
export type { VolumeServer } from './servers/volume-server.js'
export type { SlabState } from './slabs/slab-table.js'
export type { Adopted } from './take-over/adopt-slabs.js'
export type { KeptContext, KeptServer, KeptVolume } from './take-over/kept-volume.js'
export { type PageClient, resyncReplicas } from './take-over/resync-replicas.js'
export { takeOverVolume } from './take-over/take-over-volume.js'
export { openVolume } from './volume/open-volume.js'
export { Volume, type VolumeClass } from './volume/volume.js'
export {
  type MakeEngine,
  NothingLeftError,
  type ServerFailure,
  type VolumeOptions,
} from './volume/volume-options.js'
