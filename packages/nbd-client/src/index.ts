export type {
  Adopted,
  BackupOptions,
  KeptServer,
  Lane,
  LaneRequirements,
  LaneResources,
  ServerFailure,
  SlabMapping,
  SlabState,
  VolumeServer,
  WaitMode,
} from '@rdmakit/remote-volume'
export { type AttachOptions, attach } from './attach.js'
export {
  BlockEngine,
  type EngineEvent,
  type EngineStatistics,
} from './block-engine.js'
export { Volume, type VolumeOptions } from './block-volume.js'
export type { ExportOptions, TlsOptions } from './export-options.js'
export type { BlockEngineOptions } from './front-options.js'
export { kernelDevice } from './kernel.js'
export { type ClientStatus, type RunningClient, runningClients } from './runtime.js'
export { type ServeOptions, serve } from './serve.js'
export { StateFolder } from './state-folder.js'
export type { KeptDevice, KeptVolume } from './volume-json.js'
export { VolumeKeeper } from './volume-keeper.js'
