// Over the ring: gradients are written into the memory that they are sent from, the server adds them where
// they arrive, and workers take weights out of the ring.
//
// Copies of a byte: pushed, none by this program; pulled, one into the memory that weights are sent from and
// one out of the ring into the model. Beneath, shm copies once each way, iwarp twice: in and out of the socket.
import { RingConnection, type RingMessage, type RingOptions, RingServer } from '@rdmakit/ring-transport'
import { bytesOf, elementsOf, part, sliceOf } from './model.js'
import type { ToWorker, Transport } from './transport.js'

const options: RingOptions = {
  capacity: 4 * 2 ** 20,
  // The event loop takes completions; with more processes than cores a thread beside it would be in its way.
  poller: 'caller',
}

/** The slice that a message carries is its immediate. */
const elements = (message: RingMessage) => elementsOf(message.data, sliceOf(message.immediate))

class RingWorker implements ToWorker {
  readonly #connection: RingConnection
  readonly #waiting: (() => boolean)[] = []

  constructor(connection: RingConnection) {
    this.#connection = connection
  }

  pull(slice: number, weights: Float32Array): void {
    const send = () => !this.#connection.isOpen || this.#connection.send(bytesOf(weights), slice)
    if (this.#waiting.length === 0 && send()) return
    if (this.#waiting.push(send) === 1) void this.#pump()
  }

  /** Sends what waits for room in the worker's ring. */
  async #pump(): Promise<void> {
    while (this.#waiting.length > 0) {
      // A worker that is gone needs nothing any more.
      await this.#connection.writable().catch(() => this.#waiting.splice(0))
      while (this.#waiting[0]?.()) this.#waiting.shift()
    }
  }
}

export const ring: Transport = {
  async listen(uri, events) {
    const server = await RingServer.listen(uri, {
      ...options,
      onConnection: (connection) => {
        const worker = new RingWorker(connection)
        connection.views.subscribe((message) => events.pushed(message.immediate, elements(message)))
        void connection.closed.then(() => events.left(worker))
        events.joined(worker)
      },
    })
    return { uri: server.uri, close: () => server.close() }
  },

  async connect(uri, weights, pulled, lost) {
    const connection = await RingConnection.connect(uri, options)
    connection.views.subscribe((message) => {
      part(weights, sliceOf(message.immediate)).set(elements(message))
      pulled(message.immediate)
    })
    void connection.closed.then((reason) => lost(reason ?? new Error('the server left')))

    /** False when the server's ring is full. */
    function push(slice: number, fill: (gradient: Float32Array) => void): boolean {
      const { length } = sliceOf(slice)
      const bytes = connection.claim(length * 4)
      if (bytes === undefined) return false
      fill(elementsOf(bytes, sliceOf(slice)))
      connection.commit(slice)
      return true
    }

    async function pushLater(slice: number, fill: (gradient: Float32Array) => void): Promise<void> {
      do await connection.writable()
      while (!push(slice, fill))
    }

    return {
      push: (slice, fill) => (push(slice, fill) ? undefined : pushLater(slice, fill)),
      close: () => connection.close(),
    }
  },
}
