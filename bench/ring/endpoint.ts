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
   * Takes what has arrived and returns how much that was. Only where the program polls: without it, messages
   * come by themselves while the event loop runs.
   */
  readonly turn?: () => number
  close(): Promise<void>
}

/** What a transport offers: `accept` and `connect` give the two ends of one connection. */
export interface Transport {
  /** @returns where it listens, and the connection once a peer has connected */
  listen(at: string): Promise<{ uri: string; connected: Promise<Endpoint> }>
  connect(uri: string): Promise<Endpoint>
}

/** The end that asks. */
export interface Requester {
  /** Resolves with the answer, in memory that nothing writes to afterwards. */
  request(message: Uint8Array): Promise<Uint8Array>
  close(): Promise<void>
}

/** What an answer to one request of `length` bytes from `offset` is. */
export type Answer = (bytes: Uint8Array, offset: number, length: number) => Uint8Array

/** What a transport offers for requests. */
export interface RequestTransport {
  /** Answers every peer that connects. @returns where it listens */
  listen(at: string, answer: Answer): Promise<{ uri: string }>
  connect(uri: string): Promise<Requester>
}

/** Looks after which a program that polls gives the event loop a turn: for timers, and the connection's end. */
const LOOKS = 50_000
const DEADLINE_MS = 20_000

/** Polls until `done`. @throws when nothing comes for 20 s */
export async function poll(endpoint: Endpoint, done: () => boolean): Promise<void> {
  const { turn } = endpoint
  if (turn === undefined) throw new Error('this transport is not polled')
  let heard = performance.now()
  while (!done()) {
    let came = 0
    for (let looks = 0; looks < LOOKS && !done(); looks++) came += turn()
    if (done()) return
    const now = performance.now()
    if (came > 0) heard = now
    else if (now - heard > DEADLINE_MS) throw new Error('nothing came in 20 s')
    await new Promise((resolve) => setImmediate(resolve))
  }
}
