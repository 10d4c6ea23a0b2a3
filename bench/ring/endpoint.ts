/** Takes one message: `length` bytes from `offset`, to be read before it returns. */
export type Receiver = (bytes: Uint8Array, offset: number, length: number) => void

/** One end of a connection of any transport, as the benchmark drives it. */
export interface Endpoint {
  /** Who gets what arrives. */
  receiver: Receiver
  /** Sends one message now; at most a few are outstanding. */
  send(message: Uint8Array): void
  /** Sends the same message `count` times, as fast as the transport takes them. Resolves when it has them all. */
  stream(message: Uint8Array, count: number): Promise<void>
  /**
   * Takes what has arrived. Only where the program polls: without it, messages come by themselves while the
   * event loop runs.
   */
  readonly turn?: () => void
  close(): Promise<void>
}

/** What a transport offers: `accept` and `connect` give the two ends of one connection. */
export interface Transport {
  /** @returns where it listens, and the connection when somebody has connected */
  listen(at: string): Promise<{ uri: string; connected: Promise<Endpoint> }>
  connect(uri: string): Promise<Endpoint>
}

/** Polls without an answer after which a program that polls gives the event loop a turn. */
const EMPTY_POLLS = 50_000
const DEADLINE_MS = 20_000

/**
 * Polls until `done`. The event loop gets a turn when nothing has come for a while, so that timers and the
 * end of the connection are seen.
 * @throws when nothing comes for 20 s
 */
export async function poll(endpoint: Endpoint, done: () => boolean): Promise<void> {
  const { turn } = endpoint
  if (turn === undefined) throw new Error('this transport is not polled')
  const deadline = performance.now() + DEADLINE_MS
  while (!done()) {
    // The check of `done` is the program's own; it is cheap against a turn.
    for (let polls = 0; polls < EMPTY_POLLS && !done(); polls++) turn()
    if (done()) return
    if (performance.now() > deadline) throw new Error('no answer in 20 s')
    await new Promise((resolve) => setImmediate(resolve))
  }
}
