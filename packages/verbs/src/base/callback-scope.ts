import { AsyncResource } from 'node:async_hooks'
import { Observable } from 'rxjs/internal/Observable'

/**
 * The context (AsyncLocalStorage) that callbacks run in. What native code tells comes in the context of whoever used
 * the device first, or in none, as one dispatcher serves many: a scope is made where its owner is, and entered before
 * each callback of that owner's.
 */
export class CallbackScope extends AsyncResource {
  /** @param owner whose callbacks they are, for async hooks */
  constructor(owner: string) {
    super(`rdmakit.${owner}`)
  }

  /** Calls `callback` in this scope. */
  run<T>(callback: () => T): T {
    return this.runInAsyncScope(callback)
  }

  /** `callback`, which runs in this scope wherever it is called. */
  wrap<Arguments extends unknown[], Result>(
    callback: (...given: Arguments) => Result,
  ): (...given: Arguments) => Result {
    return (...given) => this.runInAsyncScope(callback, undefined, ...given)
  }

  /** What `source` gives, also at once when it is subscribed to, in this scope. */
  observe<T>(source: Observable<T>): Observable<T> {
    return new Observable((subscriber) => this.run(() => source.subscribe(subscriber)))
  }
}

/** What `source` gives, to each subscriber in the context in which it has subscribed. */
export function inSubscribersContext<T>(source: Observable<T>): Observable<T> {
  return new Observable((subscriber) => {
    const scope = new CallbackScope('subscription')
    return source.subscribe({
      next: scope.wrap((value) => subscriber.next(value)),
      error: scope.wrap((failure: unknown) => subscriber.error(failure)),
      complete: scope.wrap(() => subscriber.complete()),
    })
  })
}
