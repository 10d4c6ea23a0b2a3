import { expect } from 'vitest'

export const MIB = 2 ** 20
/** Bytes that do not go through the ring. */
export const LARGE = 300_000

/** The next thing that an observable gives. */
export function next<T>(observable: {
  subscribe(next: (value: T) => void): { unsubscribe(): void }
}): Promise<T> {
  return new Promise((resolve) => {
    const subscription = observable.subscribe((value) => {
      queueMicrotask(() => subscription.unsubscribe())
      resolve(value)
    })
  })
}

/** What a progress callback was told: never less than before, and `length` at the end. */
export function growing(seen: number[], length: number): void {
  expect(seen.at(-1)).toBe(length)
  for (let i = 1; i < seen.length; i++) expect(seen[i]).toBeGreaterThanOrEqual(seen[i - 1] as number)
}
