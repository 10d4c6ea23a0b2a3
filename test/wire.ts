import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'

/** A TCP wire to a server of this machine, for tests that stop, break or cut it. */
export class Wire {
  /** of the clients, by the order in which they came */
  readonly #clients = new Set<Socket>()
  readonly #relay: Server
  /** the port, while it refuses */
  #at = 0

  private constructor(port: number) {
    this.#relay = createServer((client) => {
      const server = connect(port, '127.0.0.1')
      this.#clients.add(client)
      client.on('close', () => this.#clients.delete(client))
      for (const [end, other] of [
        [client, server],
        [server, client],
      ] as const) {
        end.on('error', () => {})
        end.on('close', () => other.destroy())
        end.pipe(other)
      }
    })
  }

  static async to(port: number): Promise<Wire> {
    const wire = new Wire(port)
    await once(wire.#relay.listen(0, '127.0.0.1'), 'listening')
    return wire
  }

  get port(): number {
    return (this.#relay.address() as AddressInfo).port
  }

  /** The client's end of the next connection. */
  async next(): Promise<Socket> {
    const [client] = await once(this.#relay, 'connection')
    return client as Socket
  }

  /** Nothing that clients send arrives. */
  hold(): void {
    for (const client of this.#clients) client.pause()
  }

  release(): void {
    for (const client of this.#clients) client.resume()
  }

  /** Ends all connections; new ones come through. */
  break(): void {
    for (const client of this.#clients) client.destroy()
  }

  /** Ends all connections, and refuses new ones until {@link reopen}. */
  async refuse(): Promise<void> {
    this.#at = this.port
    const closed = once(this.#relay, 'close')
    this.close()
    await closed
  }

  /** At the port that it had. */
  async reopen(): Promise<void> {
    await once(this.#relay.listen(this.#at, '127.0.0.1'), 'listening')
  }

  close(): void {
    this.#relay.close()
    this.break()
  }
}
