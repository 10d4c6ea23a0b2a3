import type { RingMessage } from '../receiving/message.js'

/** The peer's handler failed. `code` and the message are what the peer said, shortened to 1 KiB. */
export class RemoteError extends Error {
  override readonly name = 'RemoteError'
  /** the peer's error code, `ENOSYS` when it has no handler, `EREMOTEIO` when its error had none */
  readonly code: string

  constructor(code: string, message: string) {
    super(message)
    this.code = code
  }
}

const MAX_BYTES = 1024

/** An error as the payload of an ERROR frame: UTF-8 `CODE message`. */
export function encodeError(failure: unknown): Uint8Array {
  // It may be an Error of another realm (vm, jest), which is an instance of none of ours.
  const { code: given, message } = (failure ?? {}) as { readonly code?: unknown; readonly message?: unknown }
  const code = typeof given === 'string' && /^[A-Z][A-Z0-9_]{1,31}$/.test(given) ? given : 'EREMOTEIO'
  const text = typeof message === 'string' ? message : 'the handler failed'
  return new TextEncoder().encode(`${code} ${text}`).subarray(0, MAX_BYTES)
}

/** Reads an ERROR frame; anything malformed becomes an `EREMOTEIO`. */
export function decodeError(frame: Pick<RingMessage, 'copy'>): RemoteError {
  // A copy: in the ring the peer could write while it is decoded.
  const text = new TextDecoder().decode(frame.copy().subarray(0, MAX_BYTES))
  const [, code, message] = /^([A-Z][A-Z0-9_]{1,31}) (.*)$/s.exec(text) ?? []
  return new RemoteError(code ?? 'EREMOTEIO', message ?? 'the peer failed without saying why')
}
