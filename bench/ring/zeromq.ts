// zeromq.js: a pair of sockets, over ipc:// or tcp://.
import { Pair } from 'zeromq'
import type { Endpoint, Receiver, Transport } from './endpoint.js'

/** Messages that either end keeps at most; the default of 1000 stops small messages early. */
const HIGH_WATER_MARK = 16_384

const options = { sendHighWaterMark: HIGH_WATER_MARK, receiveHighWaterMark: HIGH_WATER_MARK, linger: 0 }

class ZeromqEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly #socket: Pair
  readonly #receiving: Promise<void>

  constructor(socket: Pair) {
    this.#socket = socket
    this.#receiving = this.#receive()
  }

  async #receive(): Promise<void> {
    for await (const [message] of this.#socket)
      this.receiver(message as Buffer, 0, (message as Buffer).length)
  }

  send(message: Uint8Array): void {
    void this.#socket.send(message as Buffer)
  }

  /**
   * Pipelined: one send does not wait for the one before. zeromq.js takes about 500 of them at once, then
   * wants to be waited for, which it says with EBUSY.
   */
  async stream(message: Uint8Array, count: number): Promise<void> {
    let last: Promise<void> | undefined
    for (let sent = 0; sent < count; ) {
      try {
        last = this.#socket.send(message as Buffer)
        sent++
      } catch (failure) {
        if ((failure as NodeJS.ErrnoException).code !== 'EBUSY') throw failure
        await last
      }
    }
    await last
  }

  async close(): Promise<void> {
    this.#socket.close()
    await this.#receiving
  }
}

/** @param at `ipc:///path`, or `tcp://host:*` for any free port of it */
export const zeromq: Transport = {
  async listen(at) {
    const socket = new Pair(options)
    await socket.bind(at)
    return { uri: socket.lastEndpoint ?? at, connected: Promise.resolve(new ZeromqEndpoint(socket)) }
  },

  async connect(uri) {
    const socket = new Pair(options)
    socket.connect(uri)
    return new ZeromqEndpoint(socket)
  },
}
