// The ring transport over shm://, iwarp:// or rdma://.
import {
  acceptRing,
  Poller,
  type PollerMode,
  RingConnection,
  type RingOptions,
  type RingView,
} from '@rdmakit/ring-transport'
import { ConnectionId, type Context, Listener } from '@rdmakit/verbs'
import { type Endpoint, poll, type Receiver, type Transport } from './endpoint.js'

/** A ring has room for this many messages of the size that is measured, and is never smaller than 1 MiB. */
const MESSAGES = 4
const LEAST_CAPACITY = 2 ** 20
/** As short as the report of the receiving end, whose whole content counts. */
const REPORT_BYTES = 8

export interface RingChoice {
  readonly mode: PollerMode
  /** bytes of a message */
  readonly size: number
  /** `copies`: the receiver gets a message in memory of its own (`messages`), else as a view of the ring (`views`) */
  readonly receive?: 'views' | 'copies'
  /**
   * The program polls: it calls `drain` in a loop, in mode `caller`. `zero-copy`: it makes its messages
   * where they are sent from (`place` and `commit`), and fills in what differs from one to the next.
   */
  readonly polls?: 'copy' | 'zero-copy'
}

/** Messages come by the event loop. */
class EventEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly #connection: RingConnection

  constructor(connection: RingConnection, copies: boolean) {
    this.#connection = connection
    // With --against, a checkout from before views had a name: its messages are views.
    const named = (connection as Partial<RingConnection>).views !== undefined
    if (copies && !named)
      connection.messages.subscribe((message) => this.receiver(message.copy(), 0, message.length))
    else {
      const taken = named && !copies ? connection.views : connection.messages
      taken.subscribe(({ data, length }) => this.receiver(data, 0, length))
    }
  }

  send(message: Uint8Array): void {
    // A ring of few large messages is full until the credit of the one before has come.
    if (this.#connection.send(message)) this.#connection.flush()
    else void this.#connection.writable().then(() => this.send(message))
  }

  async stream(message: Uint8Array, count: number): Promise<void> {
    const connection = this.#connection
    for (let sent = 0; sent < count; ) {
      if (connection.send(message)) sent++
      else await connection.writable()
    }
    connection.flush()
  }

  async close(): Promise<void> {
    await this.#connection.close({ drain: false })
  }
}

/** The program polls, and allocates nothing. */
class PollingEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly turn: () => number
  readonly #connection: RingConnection
  readonly #send: (message: Uint8Array) => boolean

  constructor(connection: RingConnection, zeroCopy: boolean) {
    this.#connection = connection
    this.#send = zeroCopy
      ? (message) => {
          const at = connection.place(message.length)
          if (at < 0) return false
          connection.outgoing[at] = message[0] as number
          if (message.length === REPORT_BYTES) connection.outgoing.set(message, at)
          connection.commit()
          return true
        }
      : (message) => connection.send(message)
    const take = ({ bytes, offset, length }: RingView) => this.receiver(bytes, offset, length)
    this.turn = () => connection.drain(take)
  }

  send(message: Uint8Array): void {
    if (this.#send(message)) this.#connection.flush()
    else void this.#connection.writable().then(() => this.send(message))
  }

  async stream(message: Uint8Array, count: number): Promise<void> {
    for (let sent = 0; sent < count; sent++) {
      if (this.#send(message)) continue
      // Staged frames leave, and credit arrives, while it polls.
      let taken = false
      await poll(this, () => {
        taken ||= this.#send(message)
        return taken
      })
    }
    this.#connection.flush()
  }

  async close(): Promise<void> {
    await this.#connection.close({ drain: false })
  }
}

export function ring({ mode, size, receive = 'views', polls }: RingChoice): Transport {
  const options = (context: Context): RingOptions => ({
    poller: new Poller(context, { mode }),
    capacity: Math.max(LEAST_CAPACITY, 2 ** Math.ceil(Math.log2(size * MESSAGES))),
  })
  const endpoint = (connection: RingConnection): Endpoint =>
    polls === undefined
      ? new EventEndpoint(connection, receive === 'copies')
      : new PollingEndpoint(connection, polls === 'zero-copy')
  return {
    listen: async (at) => {
      let resolve: (endpoint: Endpoint) => void
      let reject: (failure: unknown) => void
      const connected = new Promise<Endpoint>((...both) => {
        ;[resolve, reject] = both
      })
      const listener = await Listener.listen(at, async (request) => {
        try {
          resolve(endpoint(await acceptRing(request, options(request.id.context))))
        } catch (failure) {
          reject(failure)
        }
      })
      return { uri: listener.uri, connected }
    },

    connect: async (uri) => {
      // Which device leads there is known when the address has been resolved.
      using id = await ConnectionId.resolve(uri)
      return endpoint(await RingConnection.connect(uri, options(id.context)))
    },
  }
}
