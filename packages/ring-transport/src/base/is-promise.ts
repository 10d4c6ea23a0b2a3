/** Whether a value is still to come: a promise, of whatever library or realm. */
export function isPromise<T>(value: unknown): value is Promise<T> {
  return typeof (value as Partial<PromiseLike<T>> | undefined | null)?.then === 'function'
}
