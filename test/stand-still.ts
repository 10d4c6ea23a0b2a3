/** Nothing of this thread runs for `ms`, as where it computes or its process was stopped. */
export function standStill(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}
