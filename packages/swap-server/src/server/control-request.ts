import { setTimeout as delay } from 'node:timers/promises'
import { control } from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import type { Actor } from './audit-log.js'
import { OutOfSlabsError } from './memory/slab-store.js'
import type { SessionHost } from './session-host.js'

/** The sender of a request. */
export interface Asking {
  /** how the log names it */
  readonly client: string
  readonly actor: Actor
  /** whom it says to be, until it has shown it */
  readonly claims?: Actor | undefined
  /** told of a request that has failed */
  failed?(message: string): void
}

/** Has a request of a control connection answered: what `dispatch` throws is recorded, and told to the client. */
export async function answerRequest(
  host: SessionHost,
  asking: Asking,
  bytes: Uint8Array,
  dispatch: (request: control.Request) => Promise<control.Response.$Properties>,
): Promise<Uint8Array> {
  let kind = 'unknown'
  const started = performance.now()
  try {
    const request = decode(bytes)
    kind = request.body ?? kind
    return control.Response.encode(await dispatch(request)).finish()
  } catch (failure) {
    const { code: given, message } = failure as { code?: unknown; message: string }
    const code = typeof given === 'string' ? given : 'EIO'
    if (failure instanceof Refusal || failure instanceof OutOfSlabsError)
      host.record(asking.actor, {
        event: 'refused',
        request: kind,
        code,
        reason: message,
        claims: asking.claims,
      })
    else host.log.error({ err: failure, client: asking.client }, 'control request failed')
    asking.failed?.(message)
    const mac = failure instanceof Refusal ? failure.mac : undefined
    return control.Response.encode({ failure: { code, message, ...(mac && { mac }) } }).finish()
  } finally {
    host.answered(kind, (performance.now() - started) / 1000)
  }
}

function decode(bytes: Uint8Array): control.Request {
  try {
    return control.Request.decode(bytes)
  } catch {
    throw new Refusal('EPROTO', 'the request cannot be decoded')
  }
}

/** Milliseconds of a window, and the requests that are answered in it. */
const WINDOW_MS = 16
const MOST = 64

/**
 * When the requests of one session are answered: those beyond so many wait for the next window, all of them together and in
 * their order. A client that asks without end has the server wake 60 times a second for it, not a thousand times.
 */
export class RequestWindow {
  #since = Number.NEGATIVE_INFINITY
  #left = 0
  /** settles with the next window, for which some wait */
  #next: Promise<void> | undefined

  /** @returns undefined: the request is answered now; else what it waits for, to ask again then */
  turn(now = performance.now()): Promise<void> | undefined {
    if (this.#next !== undefined) return this.#next
    if (now - this.#since >= WINDOW_MS) {
      this.#since = now
      this.#left = MOST
    }
    if (this.#left-- > 0) return undefined
    const open = () => {
      this.#next = undefined
    }
    this.#next = delay(this.#since + WINDOW_MS - now, undefined, { ref: false }).then(open)
    return this.#next
  }
}
