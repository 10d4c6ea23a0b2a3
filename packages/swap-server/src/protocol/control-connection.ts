import type { Context } from '@rdmakit/verbs'

/** The connection for control messages, as both ends of a session use it. A RingConnection is one. */
export interface ControlConnection {
  /** the device that it runs on */
  readonly context: Context
  readonly peerUri: string
  /** the same at both ends of this connection, and of no other */
  readonly channelBinding: Uint8Array
  /** bytes that it takes here: rings, requests that are not answered, answers that the peer does not take */
  readonly memory: number
  /** settles when it has ended, with the reason if there is one; never rejects */
  readonly closed: Promise<Error | undefined>
  /** Sets the handler of the peer's requests. */
  handle(answer: (request: { readonly data: Uint8Array }) => Uint8Array | Promise<Uint8Array>): void
  /** Asks the peer. @param options.timeout in milliseconds */
  request(
    bytes: Uint8Array,
    options: { readonly timeout: number; readonly signal?: AbortSignal | undefined },
  ): Promise<Uint8Array>
  /** @param options.drain default true: outstanding messages arrive first */
  close(options?: { readonly drain?: boolean }): Promise<void>
}
