export { ConnectionRejectedError, UsageError, VerbsError } from './base/errors.js'
export { Resource } from './base/resource.js'
export { CompletionArray } from './completion/completion-array.js'
export { CompletionChannel } from './completion/completion-channel.js'
export { CompletionQueue, type CompletionQueueOptions } from './completion/completion-queue.js'
export type { CompletedOpcode, CompletionStatus, WorkCompletion } from './completion/work-completion.js'
export {
  ConnectionId,
  type ConnectOptions,
  type DisconnectReason,
  type WaitOptions,
} from './connection/connection-id.js'
export { type ConnectionRequest, Listener, type ListenOptions } from './connection/listener.js'
export { DEFAULT_PORT, type Endpoint, formatUri, parseUri } from './connection/uri.js'
export type { AsyncEvent, AsyncEventType } from './device/async-event.js'
export { type Capabilities, Context, type Gid } from './device/context.js'
export { type DeviceInfo, listDevices, openDevice, providerProblem } from './device/device.js'
export { ProtectionDomain } from './device/protection-domain.js'
export {
  type Access,
  type KeptMemory,
  keptMemory,
  type MemoryOptions,
  MemoryRegion,
  type ScatterGatherElement,
} from './memory/memory-region.js'
export { MemoryWindow } from './memory/memory-window.js'
export type { Handle, ProviderName } from './native.js'
export { AddressHandle, type AddressVector } from './queue-pair/address-vector.js'
export {
  QueuePair,
  type QueuePairOptions,
  type UnconnectedQueuePairOptions,
} from './queue-pair/queue-pair.js'
export type {
  QueuePairAttributes,
  QueuePairQuery,
  QueuePairState,
  QueuePairType,
} from './queue-pair/queue-pair-state.js'
export { SharedReceiveQueue, type SharedReceiveQueueOptions } from './queue-pair/shared-receive-queue.js'
export type {
  BindMemoryWindowRequest,
  CompareAndSwapRequest,
  DatagramDestination,
  FetchAndAddRequest,
  LocalInvalidateRequest,
  ReadRequest,
  ReceiveWorkRequest,
  RemoteMemory,
  SendFlags,
  SendRequest,
  SendRequestCommon,
  SendWithImmediateRequest,
  SendWithInvalidateRequest,
  SendWorkRequest,
  WriteRequest,
  WriteWithImmediateRequest,
} from './queue-pair/work-request.js'
export { ReceiveSlots, type SendSlot, SendSlots } from './queue-pair/work-request-slots.js'
