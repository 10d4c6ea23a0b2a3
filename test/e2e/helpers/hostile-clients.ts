// A thousand hostile NBD connections at once: half-open handshakes, slow senders and garbage, each coming back when it is
// thrown out.
import { connect, type Socket } from 'node:net'

const ATTACKERS = 1000
/** The pause of a client that was thrown out. */
const REST_MS = 2_000
/** From a byte to the next of those that send slowly: one option takes them seconds. */
const DRIP_MS = 100
const CLIENT_FLAGS = Buffer.from([0, 0, 0, 3])
const OPTION = Buffer.concat([CLIENT_FLAGS, Buffer.from('IHAVEOPT'), Buffer.from([0, 0, 0, 3, 0, 0, 0, 0])])
const GARBAGE = Buffer.from(Array.from({ length: 200 }, (_, i) => (i * 7919) & 0xff))

export class HostileClients implements AsyncDisposable {
  readonly #path: string
  readonly #sockets = new Set<Socket>()
  readonly #timers = new Set<NodeJS.Timeout>()
  #over = false
  /** how often one of them was thrown out */
  thrownOut = 0

  /** @param path of the server's socket */
  constructor(path: string) {
    this.#path = path
    for (let i = 0; i < ATTACKERS; i++) this.#come(i % 10)
  }

  get connected(): number {
    return this.#sockets.size
  }

  /**
   * Of ten clients five are silent, three send half a header, one sends garbage, and one a valid handshake, slowly.
   */
  #come(kind: number): void {
    if (this.#over) return
    const attacker = connect(this.#path)
    attacker.on('error', () => {}) // being thrown out is the point
    attacker.on('data', () => {})
    attacker.on('connect', () => {
      this.#sockets.add(attacker)
      if (kind < 5) return
      if (kind < 8) attacker.write(Buffer.concat([CLIENT_FLAGS, Buffer.from('IHAVE')]))
      else if (kind === 8) attacker.write(GARBAGE)
      else this.#drip(attacker, 0)
    })
    attacker.on('close', () => {
      this.#sockets.delete(attacker)
      this.thrownOut++
      this.#later(REST_MS, () => this.#come(kind))
    })
  }

  #drip(attacker: Socket, at: number): void {
    if (this.#over || attacker.destroyed) return
    attacker.write(OPTION.subarray(at % OPTION.length, (at % OPTION.length) + 1))
    this.#later(DRIP_MS, () => this.#drip(attacker, at + 1))
  }

  #later(ms: number, what: () => void): void {
    const timer = setTimeout(() => {
      this.#timers.delete(timer)
      what()
    }, ms)
    this.#timers.add(timer)
  }

  /** Resolves when all have gone. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#over = true
    for (const timer of this.#timers) clearTimeout(timer)
    await Promise.all(
      [...this.#sockets].map(
        (each) =>
          new Promise<void>((resolve) => {
            each.once('close', () => resolve())
            each.destroy()
          }),
      ),
    )
  }
}
