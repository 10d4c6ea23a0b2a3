export { type AttachOptions, attach } from './attach.js'
export type { BackupOptions } from './backup.js'
export {
  BlockEngine,
  type BlockEngineOptions,
  type EngineEvent,
  type EngineStatistics,
  type ExportOptions,
  kernelDevice,
  type Lane,
  type LaneRequirements,
  type LaneResources,
  type SlabMapping,
  type TlsOptions,
  type WaitMode,
} from './engine.js'
export { type ClientStatus, type RunningClient, runningClients } from './runtime.js'
export { type ServeOptions, serve } from './serve.js'
export type { SlabState } from './slab-table.js'
export { type ServerFailure, Volume, type VolumeOptions } from './volume.js'
export type { VolumeServer } from './volume-server.js'
