import { callApart } from './errors.js'

/** Those who wait for a signal, with the one listener that serves them. */
interface Waiting {
  readonly callbacks: Set<() => void>
  readonly listener: () => void
}

const waiting = new WeakMap<AbortSignal, Waiting>()

/**
 * Calls `callback` once when `signal` aborts. All who wait for one signal share a listener: a program that gives it to
 * eleven calls has not leaked ten, as Node would warn. A callback that throws does not stop the others: as with listeners
 * of their own, what it throws is an uncaught exception.
 * @returns what takes it back; idempotent
 */
export function onAbort(signal: AbortSignal | undefined, callback: () => void): () => void {
  if (signal === undefined) return () => {}
  const known = waiting.get(signal) ?? listen(signal)
  known.callbacks.add(callback)
  return () => {
    if (!known.callbacks.delete(callback) || known.callbacks.size > 0) return
    signal.removeEventListener('abort', known.listener)
    if (waiting.get(signal) === known) waiting.delete(signal)
  }
}

function listen(signal: AbortSignal): Waiting {
  const callbacks = new Set<() => void>()
  const listener = () => {
    waiting.delete(signal)
    for (const callback of callbacks) {
      try {
        callback()
      } catch (failure) {
        callApart(() => {
          throw failure
        })
      }
    }
  }
  const made = { callbacks, listener }
  waiting.set(signal, made)
  signal.addEventListener('abort', listener, { once: true })
  return made
}
