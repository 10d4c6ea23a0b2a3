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
