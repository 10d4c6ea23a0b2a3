// Over zeromq.js: a router and a dealer for each worker; messages are sent from where they are.
//
// Copies of a byte: pushed, none by this program; pulled, one out of the message into the model. Beneath, two
// each way: in and out of the socket.
import { Dealer, Router } from 'zeromq'
import { bytesOf, elementsOf, PARAMETERS, part, sliceOf } from './model.js'
import type { ToWorker, Transport } from './transport.js'

/** No message waits but those of one iteration, and none of them is a copy: no limit of their number is needed. */
const options = { sendHighWaterMark: 0, receiveHighWaterMark: 0 }
/** In place of a slice: the worker has joined, or leaves. */
const JOIN = 0xffff_ffff
const LEAVE = 0xffff_fffe

const withoutPrefix = (uri: string) => uri.replace(/^zeromq\+/, '')

function header(slice: number): Buffer {
  const bytes = Buffer.allocUnsafe(4)
  bytes.writeUInt32LE(slice)
  return bytes
}

const payload = (elements: Float32Array) => {
  const { buffer, byteOffset, length } = bytesOf(elements)
  return Buffer.from(buffer, byteOffset, length)
}

/**
 * Sends in order, one after the other without waiting for the one before as long as zeromq.js takes them:
 * EBUSY says when it wants to be waited for.
 */
class Sender {
  readonly #socket: Dealer | Router
  readonly #waiting: Buffer[][] = []
  #last: Promise<void> = Promise.resolve()

  constructor(socket: Dealer | Router) {
    this.#socket = socket
  }

  send(parts: Buffer[]): void {
    if (this.#waiting.length > 0 || !this.#try(parts)) {
      if (this.#waiting.push(parts) === 1) void this.#pump()
    }
  }

  #try(parts: Buffer[]): boolean {
    try {
      this.#last = this.#socket.send(parts)
      return true
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code !== 'EBUSY') throw failure
      return false
    }
  }

  async #pump(): Promise<void> {
    while (this.#waiting.length > 0) {
      await this.#last
      for (let next = this.#waiting[0]; next !== undefined && this.#try(next); next = this.#waiting[0])
        this.#waiting.shift()
    }
  }

  async drained(): Promise<void> {
    do await this.#last
    while (this.#waiting.length > 0)
  }
}

export const zeromq: Transport = {
  async listen(uri, events) {
    const router = new Router({ ...options, linger: 0 })
    await router.bind(withoutPrefix(uri))
    const sender = new Sender(router)
    const workers = new Map<string, ToWorker>()
    const receive = async () => {
      for await (const [identity, head, bytes] of router as AsyncIterable<[Buffer, Buffer, Buffer?]>) {
        const name = identity.toString('hex')
        const slice = head.readUInt32LE()
        if (slice === JOIN) {
          const worker = {
            pull: (slice: number, weights: Float32Array) =>
              sender.send([identity, header(slice), payload(weights)]),
          }
          workers.set(name, worker)
          events.joined(worker)
        } else if (slice === LEAVE) {
          const worker = workers.get(name)
          if (worker !== undefined) events.left(worker)
          workers.delete(name)
        } else if (bytes !== undefined) events.pushed(slice, elementsOf(bytes, sliceOf(slice)))
      }
    }
    void receive()
    return {
      uri: `zeromq+${router.lastEndpoint}`,
      close: async () => router.close(),
    }
  },

  async connect(uri, weights, pulled) {
    const dealer = new Dealer(options)
    dealer.connect(withoutPrefix(uri))
    const sender = new Sender(dealer)
    sender.send([header(JOIN)])
    const receive = async () => {
      for await (const [head, bytes] of dealer as AsyncIterable<[Buffer, Buffer]>) {
        const number = head.readUInt32LE()
        const slice = sliceOf(number)
        part(weights, slice).set(elementsOf(bytes, slice))
        pulled(number)
      }
    }
    void receive()
    const gradients = new Float32Array(PARAMETERS)
    return {
      push(number, fill) {
        const gradient = part(gradients, sliceOf(number))
        fill(gradient)
        sender.send([header(number), payload(gradient)])
        return undefined
      },
      close: async () => {
        sender.send([header(LEAVE)])
        await sender.drained()
        dealer.close()
      },
    }
  },
}
