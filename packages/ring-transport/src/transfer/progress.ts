/** Told how far a transfer is: bytes, which only grow, of how many. */
export type OnProgress = (transferred: number, length: number) => void

/** What it throws is nobody's here: it goes where errors of callbacks go, as an uncaught exception. */
export function tell(onProgress: OnProgress | undefined, transferred: number, length: number): void {
  try {
    onProgress?.(transferred, length)
  } catch (failure) {
    queueMicrotask(() => {
      throw failure
    })
  }
}
