import { printable } from '@rdmakit/operator-kit'
import { control } from './messages.js'

/** Slabs that one Activity may ask for. */
export const MAX_ACTIVITY_IDS = 256
/** Slabs that one Reclaim may ask for. */
export const MAX_RECLAIM_IDS = 64

/** How a client answers its server. Ids are of its slabs there; others may occur, for a Free may be on its way. */
export interface ServerRequestHandler {
  /** @returns milliseconds since each slab was used last, in the order of `ids` */
  activity(ids: readonly number[]): readonly number[]
  /** The server's host needs this memory. @returns the slabs that will be moved elsewhere and freed */
  reclaim(ids: readonly number[]): readonly number[]
  /** It ends the session with its memory. The caller does not wait for it. */
  ending?(reason: string): void
}

/** A client that cannot move anything. */
export const MOVES_NOTHING: ServerRequestHandler = { activity: (ids) => ids.map(() => 0), reclaim: () => [] }

/** The client's end. `ready`: all but the end of the session waits for it. */
export async function answerServer(
  bytes: Uint8Array,
  handler: ServerRequestHandler,
  ready: Promise<void>,
): Promise<Uint8Array> {
  return control.ServerResponse.encode(await respond(bytes, handler, ready)).finish()
}

async function respond(
  bytes: Uint8Array,
  handler: ServerRequestHandler,
  ready: Promise<void>,
): Promise<control.ServerResponse.$Properties> {
  let request: control.ServerRequest
  try {
    request = control.ServerRequest.decode(bytes)
  } catch {
    return { failure: { code: 'EPROTO', message: 'the request cannot be decoded' } }
  }
  const { activity, reclaim, ending } = request
  const ids = (activity?.ids ?? reclaim?.ids ?? []).map(Number)
  if (ids.length > (activity ? MAX_ACTIVITY_IDS : MAX_RECLAIM_IDS))
    return { failure: { code: 'EINVAL', message: `${ids.length} slabs are too many for one request` } }
  if (ending) {
    handler.ending?.(printable(ending.reason ?? '').slice(0, 300))
    return { ending: {} }
  }
  await ready
  if (activity) return { activity: { idleMs: [...handler.activity(ids)] } }
  if (reclaim) return { reclaim: { ids: [...handler.reclaim(ids)] } }
  return { failure: { code: 'EPROTO', message: 'unknown request' } }
}

/** Sends bytes to the client and gives its answer. */
export type AskClient = (request: Uint8Array) => Promise<Uint8Array>

/** The server's end. @returns milliseconds, one for each id @throws Error: the client answers nonsense, or not */
export async function askActivity(ask: AskClient, ids: readonly number[]): Promise<readonly number[]> {
  const idle: number[] = []
  for (let at = 0; at < ids.length; at += MAX_ACTIVITY_IDS) {
    const some = ids.slice(at, at + MAX_ACTIVITY_IDS)
    const { activity } = await exchange(ask, { activity: { ids: some } })
    const answer = (activity?.idleMs ?? []).map(Number)
    if (answer.length !== some.length)
      throw new Error(`it told of ${answer.length} slabs instead of ${some.length}`)
    idle.push(...answer)
  }
  return idle
}

/** @returns those of `ids` that the client will move and free @throws Error: it answers nonsense, or not */
export async function askReclaim(ask: AskClient, ids: readonly number[]): Promise<readonly number[]> {
  const accepted: number[] = []
  for (let at = 0; at < ids.length; at += MAX_RECLAIM_IDS) {
    const some = ids.slice(at, at + MAX_RECLAIM_IDS)
    const { reclaim } = await exchange(ask, { reclaim: { ids: some } })
    const answer = new Set((reclaim?.ids ?? []).map(Number))
    accepted.push(...some.filter((id) => answer.has(id)))
  }
  return accepted
}

/** Tells the client that its memory goes. A client of a version before this says that it knows no such request. */
export async function tellEnding(ask: AskClient, reason: string): Promise<void> {
  await ask(control.ServerRequest.encode({ ending: { reason } }).finish())
}

async function exchange(
  ask: AskClient,
  request: control.ServerRequest.$Properties,
): Promise<control.ServerResponse> {
  const response = control.ServerResponse.decode(await ask(control.ServerRequest.encode(request).finish()))
  if (response.failure) throw new Error(response.failure.message ?? 'it gave no reason')
  return response
}
