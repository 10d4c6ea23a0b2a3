// The ring as its README shows it to a newcomer: no option is set. Messages go by `send`, or by `transmit` where they
// do not fit, and arrive by `messages`, in memory of their own; nothing calls `flush`. Requests go by `request` and are
// answered by `handle`.
import { RingConnection, RingServer } from '@rdmakit/ring-transport'
import type { Endpoint, Receiver, RequestTransport, Transport } from './endpoint.js'

/** Large messages that are under way at a time while many are sent: as many as in the README's figures. */
const TRANSMITTED = 8

class DefaultEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly #connection: RingConnection

  constructor(connection: RingConnection) {
    this.#connection = connection
    connection.messages.subscribe(({ data, length }) => this.receiver(data, 0, length))
  }

  /** A failure is an unhandled rejection, which ends the process. */
  send(message: Uint8Array): void {
    const connection = this.#connection
    if (message.length > connection.maxMessageLength) void connection.transmit(message)
    else if (!connection.send(message)) void connection.writable().then(() => this.send(message))
  }

  async stream(message: Uint8Array, count: number): Promise<void> {
    const connection = this.#connection
    if (message.length <= connection.maxMessageLength) {
      for (let sent = 0; sent < count; sent++) while (!connection.send(message)) await connection.writable()
      return
    }
    let left = count
    const oneByOne = async () => {
      while (left-- > 0) await connection.transmit(message)
    }
    await Promise.all(Array.from({ length: TRANSMITTED }, oneByOne))
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }
}

export const defaultRing: Transport = {
  async listen(at) {
    let onConnection: (connection: RingConnection) => void = () => {}
    const connected = new Promise<Endpoint>((resolve) => {
      onConnection = (connection) => resolve(new DefaultEndpoint(connection))
    })
    const { uri } = await RingServer.listen(at, { onConnection })
    return { uri, connected }
  },

  connect: async (uri) => new DefaultEndpoint(await RingConnection.connect(uri)),
}

export const defaultRequests: RequestTransport = {
  listen: async (at, answer) =>
    await RingServer.listen(at, {
      onConnection(connection) {
        connection.handle(({ data, length }) => answer(data, 0, length))
      },
    }),

  connect: (uri) => RingConnection.connect(uri),
}
