export type { Adopted } from './adopt-slabs.js'
export { type AttachOptions, attach } from './attach.js'
export type { BackupOptions } from './backup.js'
export {
  BlockEngine,
  type EngineEvent,
  type EngineStatistics,
} from './block-engine.js'
export { Volume, type VolumeOptions } from './block-volume.js'
export type { Lane, LaneRequirements, LaneResources } from './engine-lane.js'
export type { ExportOptions, TlsOptions } from './export-options.js'
export type { BlockEngineOptions } from './front-options.js'
export type { KeptServer } from './kept-volume.js'
export { kernelDevice } from './kernel.js'
export { type ClientStatus, type RunningClient, runningClients } from './runtime.js'
export { type ServeOptions, serve } from './serve.js'
export type { SlabState } from './slab-table.js'
export { StateFolder } from './state-folder.js'
export type { SlabMapping } from './volume-engine.js'
export type { WaitMode } from './volume-engine-options.js'
export type { KeptDevice, KeptVolume } from './volume-json.js'
export { VolumeKeeper } from './volume-keeper.js'
export type { ServerFailure } from './volume-options.js'
export type { VolumeServer } from './volume-server.js'
