import { Observable } from 'rxjs/internal/Observable'
import { share } from 'rxjs/internal/operators/share'
import { inSubscribersContext } from '../base/callback-scope.js'
import { calling } from '../base/errors.js'
import type { Resource } from '../base/resource.js'
import { native } from '../native.js'

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

type Find = (identity: bigint) => Resource | undefined

const PORT_EVENTS: readonly AsyncEventType[] = [
  'port-active',
  'port-error',
  'lid-change',
  'partition-key-change',
  'subnet-manager-change',
  'client-reregister',
  'gid-change',
]

/**
 * @internal of `device`, until it has ended
 * @param find what it has made, by its identity
 * @param ended tells the end; no promise, which would keep all who ever listened
 */
export function asyncEventsOf(device: Resource, find: Find, ended: Observable<void>): Observable<AsyncEvent> {
  const shared = new Observable<AsyncEvent>((subscriber) => {
    calling(device.description, () =>
      native.watchAsyncEvents(device.handle, (type, element) =>
        subscriber.next(asyncEvent(type, element, find)),
      ),
    )
    subscriber.add(ended.subscribe(() => subscriber.complete()))
    return () => {
      if (!device.closed) native.unwatchAsyncEvents(device.handle)
    }
  }).pipe(share())
  return inSubscribersContext(shared)
}

function asyncEvent(type: number, element: bigint, find: Find): AsyncEvent {
  const name = TYPES[type] ?? 'device-fatal'
  return PORT_EVENTS.includes(name)
    ? { type: name, object: undefined, port: Number(element) }
    : { type: name, object: find(element), port: undefined }
}
