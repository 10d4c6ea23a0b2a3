import { expect } from 'vitest'

export const MIB = 2 ** 20
/** Bytes that do not go through the ring of who is {@link READ_FROM}. */
export const LARGE = 300_000
/** The receiver reads messages from 256 KiB on, with no parts in between. */
export const READ_FROM = { rendezvousThreshold: 2 ** 18 }

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

/** Checks a progress callback's values: never less than before, and `length` at the end. */
export function growing(seen: number[], length: number): void {
  expect(seen.at(-1)).toBe(length)
  for (let i = 1; i < seen.length; i++) expect(seen[i]).toBeGreaterThanOrEqual(seen[i - 1] as number)
}
