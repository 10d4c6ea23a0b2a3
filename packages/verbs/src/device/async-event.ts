import type { Resource } from '../base/resource.js'

/** `enum ibv_event_type`, in its order. */
const TYPES = [
  'completion-queue-error',
  'queue-pair-fatal',
  'queue-pair-request-error',
  'queue-pair-access-error',
  'communication-established',
  'send-queue-drained',
  'path-migrated',
  'path-migration-error',
  'device-fatal',
  'port-active',
  'port-error',
  'lid-change',
  'partition-key-change',
  'subnet-manager-change',
  'shared-receive-queue-error',
  'shared-receive-queue-limit-reached',
  'queue-pair-last-work-request-reached',
  'client-reregister',
  'gid-change',
  'work-queue-fatal',
] as const

/** What {@link AsyncEvent.type} can be. */
export type AsyncEventType = (typeof TYPES)[number]

/** What happened to a device, outside of any work request (ibv_get_async_event(3)). */
export interface AsyncEvent {
  /** what happened */
  readonly type: AsyncEventType
  /** the completion queue, queue pair or shared receive queue that it is about, if this program still has it */
  readonly object: Resource | undefined
  /** the port number, of port events */
  readonly port: number | undefined
}

const PORT_EVENTS: readonly AsyncEventType[] = [
  'port-active',
  'port-error',
  'lid-change',
  'partition-key-change',
  'subnet-manager-change',
  'client-reregister',
  'gid-change',
]

/** @internal */
export function asyncEvent(
  type: number,
  element: bigint,
  find: (identity: bigint) => Resource | undefined,
): AsyncEvent {
  const name = TYPES[type] ?? 'device-fatal'
  return PORT_EVENTS.includes(name)
    ? { type: name, object: undefined, port: Number(element) }
    : { type: name, object: find(element), port: undefined }
}
