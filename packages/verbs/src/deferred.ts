/** A promise and the functions that settle it (`Promise.withResolvers` of Node 22). */
export interface Deferred<T> {
  /** what is settled */
  readonly promise: Promise<T>
  /** fulfils it */
  readonly resolve: (value: T) => void
  /** rejects it */
  readonly reject: (reason: unknown) => void
}

/** A promise with its ends outside. */
export function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void
  let reject!: (reason: unknown) => void
  const promise = new Promise<T>((yes, no) => {
    resolve = yes
    reject = no
  })
  return { promise, resolve, reject }
}

/**
 * Waits for `promise` at most `timeoutMs`, less when `signal` aborts. The losing promise is not
 * left unhandled.
 */
export async function within<T>(
  promise: Promise<T>,
  timeoutMs: number,
  expired: () => unknown,
  signal?: AbortSignal,
): Promise<T> {
  const end = deferred<never>()
  const abort = () => end.reject(signal?.reason)
  const timer = setTimeout(() => end.reject(expired()), timeoutMs)
  promise.catch(() => {})
  signal?.addEventListener('abort', abort, { once: true })
  try {
    signal?.throwIfAborted()
    return await Promise.race([promise, end.promise])
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', abort)
  }
}
