import { AsyncResource } from 'node:async_hooks'
import { queueMicrotask } from '../base/clock.js'

/** Told how far a transfer is: bytes, which only grow, of how many. */
export type OnProgress = (transferred: number, length: number) => void

/** Its errors are not handled here: they go where errors of callbacks go, as an uncaught exception. */
export function tell(onProgress: OnProgress | undefined, transferred: number, length: number): void {
  try {
    onProgress?.(transferred, length)
  } catch (failure) {
    queueMicrotask(() => {
      throw failure
    })
  }
}

/** The same options, whose `onProgress` is called in the context (AsyncLocalStorage) of now. */
export function inCallersContext<Options extends { readonly onProgress?: OnProgress | undefined }>(
  options: Options,
): Options {
  const { onProgress } = options
  return onProgress === undefined ? options : { ...options, onProgress: AsyncResource.bind(onProgress) }
}
