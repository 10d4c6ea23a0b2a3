export type {
  /** @deprecated import it from `@rdmakit/remote-volume` */
  Adopted,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  BackupOptions,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  KeptServer,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  Lane,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  LaneRequirements,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  LaneResources,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  ServerFailure,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  SlabMapping,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  SlabState,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  VolumeServer,
  /** @deprecated import it from `@rdmakit/remote-volume` */
  WaitMode,
} from '@rdmakit/remote-volume'
export { attach } from './attach/attach.js'
export type { AttachOptions } from './attach/attach-options.js'
export {
  BlockEngine,
  type EngineEvent,
  type EngineEvents,
  type EngineStatistics,
} from './engine/block-engine.js'
export { Volume, type VolumeOptions } from './engine/block-volume.js'
export type { ExportOptions, TlsOptions } from './engine/export-options.js'
export type { BlockEngineOptions, FrontOptions } from './engine/front-options.js'
export type { NativeFrontEvent, NativeFrontStatistics, NativeSafety } from './engine/native.js'
export { serve } from './export/serve.js'
export type { ServeOptions } from './export/serve-options.js'
export type { Front } from './kernel/device-name.js'
export { type KernelDeviceOptions, kernelDevice } from './kernel/kernel.js'
export { type ClientStatus, type RunningClient, runningClients, type Upgraded } from './report/control.js'
export { StateFolder } from './upgrade/state-folder.js'
export type { KeptDevice, KeptVolume } from './upgrade/volume-json.js'
export { type KeptFiles, VolumeKeeper } from './upgrade/volume-keeper.js'
