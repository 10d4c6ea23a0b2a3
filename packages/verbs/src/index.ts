export { CompletionChannel } from './completion-channel.js'
export { CompletionQueue, type CompletionQueueOptions } from './completion-queue.js'
export {
  ConnectionId,
  type ConnectOptions,
  type DisconnectReason,
  type WaitOptions,
} from './connection-id.js'
export { type Capabilities, Context } from './context.js'
export { type Deferred, deferred, within } from './deferred.js'
export { type DeviceInfo, listDevices, openDevice, providerProblem } from './device.js'
export { ConnectionRejectedError, UsageError, VerbsError } from './errors.js'
export { type ConnectionRequest, Listener, type ListenOptions } from './listener.js'
export { type Access, MemoryRegion, type ScatterGatherElement } from './memory-region.js'
export type { Handle, ProviderName } from './native.js'
export { ProtectionDomain } from './protection-domain.js'
export {
  QueuePair,
  type QueuePairOptions,
  type QueuePairState,
  type ReceiveWorkRequest,
  type SendWorkRequest,
} from './queue-pair.js'
export { DEFAULT_PORT, type Endpoint, formatUri, parseUri } from './uri.js'
export type { CompletedOpcode, CompletionStatus, WorkCompletion } from './work-completion.js'
