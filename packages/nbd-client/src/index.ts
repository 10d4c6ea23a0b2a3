export { type AttachOptions, attach } from './attach.js'
export type { BackupOptions } from './backup.js'
export {
  BlockEngine,
  type BlockEngineOptions,
  type EngineEvent,
  type EngineStatistics,
  type ExportOptions,
  type Lane,
  type LaneRequirements,
  type LaneResources,
  type SlabMapping,
  type TlsOptions,
  type WaitMode,
} from './engine.js'
export { kernelDevice } from './kernel.js'
export { type ClientStatus, type RunningClient, runningClients } from './runtime.js'
export { type ServeOptions, serve } from './serve.js'
export type { SlabState } from './slab-table.js'
export { type KeptDevice, type KeptServer, type KeptVolume, StateFolder } from './state-folder.js'
export type { Adopted } from './take-over.js'
export { type ServerFailure, Volume, type VolumeOptions } from './volume.js'
export { VolumeKeeper } from './volume-keeper.js'
export type { VolumeServer } from './volume-server.js'
