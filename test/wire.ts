import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import { OWN_LOOPBACK } from './own-loopback.js'

/** A TCP wire to a server of this machine, for tests that stop, break or cut it. */
export class Wire {
  /** of the clients, by the order in which they came */
  readonly #clients = new Set<Socket>()
  readonly #relay: Server
  /** the port, while it refuses */
  #at = 0

  private constructor(host: string, port: number) {
    this.#relay = createServer((client) => {
      const server = connect(port, host)
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

  /** @param uri of the server */
  static async to(uri: string): Promise<Wire> {
    const { hostname, port } = new URL(uri)
    const wire = new Wire(hostname, Number(port))
    await once(wire.#relay.listen(0, OWN_LOOPBACK), 'listening')
    return wire
  }

  /** Where clients reach it. */
  get uri(): string {
    return `iwarp://${OWN_LOOPBACK}:${(this.#relay.address() as AddressInfo).port}`
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
    this.#at = (this.#relay.address() as AddressInfo).port
    const closed = once(this.#relay, 'close')
    this.close()
    await closed
  }

  /** At the port that it had. */
  async reopen(): Promise<void> {
    await once(this.#relay.listen(this.#at, OWN_LOOPBACK), 'listening')
  }

  close(): void {
    this.#relay.close()
    this.break()
  }
}
