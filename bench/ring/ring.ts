// The ring transport over shm://, iwarp:// or rdma://.
import {
  acceptRing,
  Poller,
  type PollerMode,
  RingConnection,
  type RingOptions,
} from '@rdmakit/ring-transport'
import { ConnectionId, type Context, Listener } from '@rdmakit/verbs'
import type { Endpoint, Receiver, Transport } from './endpoint.js'

/** A ring has room for this many messages of the size that is measured, and is never smaller than 1 MiB. */
const MESSAGES = 4
const LEAST_CAPACITY = 2 ** 20

export interface RingChoice {
  readonly mode: PollerMode
  /** bytes of a message */
  readonly size: number
  /** whether the receiver copies a message out of the ring before it looks at it */
  readonly copies: boolean
}

/** Messages come by the event loop. */
class EventEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly #connection: RingConnection

  constructor(connection: RingConnection, copies: boolean) {
    this.#connection = connection
    connection.messages.subscribe((message) =>
      this.receiver(copies ? message.copy() : message.data, 0, message.length),
    )
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

export function ring({ mode, size, copies }: RingChoice): Transport {
  const options = (context: Context): RingOptions => ({
    poller: new Poller(context, { mode }),
    capacity: Math.max(LEAST_CAPACITY, 2 ** Math.ceil(Math.log2(size * MESSAGES))),
  })
  const endpoint = (connection: RingConnection): Endpoint => new EventEndpoint(connection, copies)
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
