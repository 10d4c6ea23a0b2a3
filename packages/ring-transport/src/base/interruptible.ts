/**
 * An async generator that can be left while it waits. One of the language queues `return()` behind a `next()` that has
 * not settled, so that who leaves waits for what may never come.
 * @param make the generator; it ends, or throws the signal's reason, when the signal aborts
 * @param unbegun called when it is left before its first `next()`: then no line of it runs, not even a `finally`
 */
export function interruptible<T>(
  make: (left: AbortSignal) => AsyncGenerator<T, void, void>,
  unbegun: () => void = () => {},
): AsyncGenerator<T, void, void> {
  const leave = new AbortController()
  const inner = make(leave.signal)
  let begun = false
  const end = () => {
    leave.abort()
    if (!begun) unbegun()
    begun = true
  }
  const outer = {
    async next(): Promise<IteratorResult<T, void>> {
      begun = true
      try {
        return await inner.next()
      } catch (failure) {
        if (leave.signal.aborted && failure === leave.signal.reason) return { done: true, value: undefined }
        throw failure
      }
    },
    async return(): Promise<IteratorResult<T, void>> {
      end()
      return await inner.return()
    },
    async throw(failure: unknown): Promise<IteratorResult<T, void>> {
      end()
      return await inner.throw(failure)
    },
    [Symbol.asyncIterator]: () => outer,
    [Symbol.asyncDispose]: async () => void (await outer.return()),
  }
  return outer as AsyncGenerator<T, void, void>
}
