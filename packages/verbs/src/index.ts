export { AddressHandle, type AddressVector } from './address-vector.js'
export type { AsyncEvent, AsyncEventType } from './async-event.js'
export { CompletionArray } from './completion-array.js'
export { CompletionChannel } from './completion-channel.js'
export { CompletionQueue, type CompletionQueueOptions } from './completion-queue.js'
export {
  ConnectionId,
  type ConnectOptions,
  type DisconnectReason,
  type WaitOptions,
} from './connection-id.js'
export { type Capabilities, Context, type Gid } from './context.js'
export { type DeviceInfo, listDevices, openDevice, providerProblem } from './device.js'
export { ConnectionRejectedError, UsageError, VerbsError } from './errors.js'
export { type ConnectionRequest, Listener, type ListenOptions } from './listener.js'
export {
  type Access,
  type KeptMemory,
  keptMemory,
  type MemoryOptions,
  MemoryRegion,
  type ScatterGatherElement,
} from './memory-region.js'
export { MemoryWindow } from './memory-window.js'
export type { Handle, ProviderName } from './native.js'
export { ProtectionDomain } from './protection-domain.js'
export { QueuePair, type QueuePairOptions, type UnconnectedQueuePairOptions } from './queue-pair.js'
export type {
  QueuePairAttributes,
  QueuePairQuery,
  QueuePairState,
  QueuePairType,
} from './queue-pair-state.js'
export { Resource } from './resource.js'
export { SharedReceiveQueue, type SharedReceiveQueueOptions } from './shared-receive-queue.js'
export { DEFAULT_PORT, type Endpoint, formatUri, parseUri } from './uri.js'
export type { CompletedOpcode, CompletionStatus, WorkCompletion } from './work-completion.js'
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
} from './work-request.js'
export { ReceiveSlots, type SendSlot, SendSlots } from './work-request-slots.js'
