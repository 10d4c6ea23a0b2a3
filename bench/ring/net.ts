// Node's own sockets, TCP on loopback or a Unix socket, with frames: a length of 4 bytes, then the message.
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import type { Endpoint, Receiver, Transport } from './endpoint.js'

const HEADER = 4
const LARGEST = 2 ** 26
/** Up to here a message is copied behind its length; above, the two are written apart. */
const COPIED = 16_384
/** Messages between cork and uncork. */
const CORKED = 256
const CORKED_LARGE = 16
/** Where messages are copied together, and how many such writes are under way before the sender waits. */
const SLAB = 65_536
const SLABS = 8

/** Finds messages in a stream; those that lie in one chunk are not copied. */
class Parser {
  readonly #header = Buffer.alloc(HEADER)
  #headerLength = 0
  #message: Buffer<ArrayBuffer> = Buffer.alloc(0)
  #filled = 0
  #wanted = 0

  take(chunk: Buffer, receiver: Receiver): void {
    let at = 0
    if (this.#headerLength > 0) {
      at = this.#finish(chunk, receiver)
      if (at < 0) return
    }
    while (chunk.length - at >= HEADER) {
      const length = chunk.readUInt32LE(at)
      if (length > LARGEST) throw new Error(`a frame of ${length} bytes`)
      const end = at + HEADER + length
      if (end > chunk.length) break
      receiver(chunk, at + HEADER, length)
      at = end
    }
    if (at < chunk.length) this.#begin(chunk, at)
  }

  /** Keeps a message of which only the beginning is there, or not even its header. */
  #begin(chunk: Buffer, at: number): void {
    this.#headerLength = chunk.copy(this.#header, 0, at, at + HEADER)
    if (this.#headerLength < HEADER) return
    this.#prepare()
    this.#filled = chunk.copy(this.#message, 0, at + HEADER)
  }

  #prepare(): void {
    this.#wanted = this.#header.readUInt32LE(0)
    if (this.#wanted > LARGEST) throw new Error(`a frame of ${this.#wanted} bytes`)
    if (this.#message.length < this.#wanted) this.#message = Buffer.allocUnsafe(this.#wanted)
    this.#filled = 0
  }

  /** Goes on with a message that began in an earlier chunk. @returns where the next one begins, or -1 */
  #finish(chunk: Buffer, receiver: Receiver): number {
    let at = 0
    if (this.#headerLength < HEADER) {
      at = chunk.copy(this.#header, this.#headerLength, 0, HEADER - this.#headerLength)
      this.#headerLength += at
      if (this.#headerLength < HEADER) return -1
      this.#prepare()
    }
    const copied = chunk.copy(this.#message, this.#filled, at, at + this.#wanted - this.#filled)
    this.#filled += copied
    if (this.#filled < this.#wanted) return -1
    this.#headerLength = 0
    receiver(this.#message, 0, this.#wanted)
    return at + copied
  }
}

class NetEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly #socket: Socket
  readonly #coalesces: boolean
  readonly #parser = new Parser()
  readonly #slabs = Array.from({ length: SLABS }, () => Buffer.allocUnsafe(SLAB))
  #slabFree: (() => void) | undefined

  constructor(socket: Socket, coalesces: boolean) {
    this.#socket = socket
    this.#coalesces = coalesces
    socket.on('data', (chunk) => this.#parser.take(chunk, this.receiver))
    socket.on('error', () => socket.destroy())
  }

  send(message: Uint8Array): void {
    this.#socket.cork()
    this.#write(message)
    this.#socket.uncork()
  }

  async stream(message: Uint8Array, count: number): Promise<void> {
    if (this.#coalesces && message.length <= COPIED) await this.#streamCopied(message, count)
    else await this.#streamCorked(message, count)
  }

  /** As programs do it: many writes between cork and uncork, which become one writev(2). */
  async #streamCorked(message: Uint8Array, count: number): Promise<void> {
    const corked = message.length <= COPIED ? CORKED : CORKED_LARGE
    for (let left = count; left > 0; ) {
      const frames = Math.min(left, corked)
      this.#socket.cork()
      for (let i = 0; i < frames; i++) this.#write(message)
      this.#socket.uncork()
      left -= frames
      if (this.#socket.writableNeedDrain) await once(this.#socket, 'drain')
    }
  }

  /** All that Node allows: frames are copied together by the program, so that a write takes a thousand. */
  async #streamCopied(message: Uint8Array, count: number): Promise<void> {
    const frame = HEADER + message.length
    for (let left = count; left > 0; ) {
      const slab = this.#slabs.pop()
      if (slab === undefined) {
        await new Promise<void>((resolve) => {
          this.#slabFree = resolve
        })
        continue
      }
      const frames = Math.min(left, Math.floor(SLAB / frame))
      for (let i = 0, at = 0; i < frames; i++, at += frame) {
        slab.writeUInt32LE(message.length, at)
        slab.set(message, at + HEADER)
      }
      left -= frames
      this.#socket.write(slab.subarray(0, frames * frame), () => {
        this.#slabs.push(slab)
        this.#slabFree?.()
        this.#slabFree = undefined
      })
    }
  }

  #write(message: Uint8Array): void {
    if (message.length > COPIED) {
      const header = Buffer.allocUnsafe(HEADER)
      header.writeUInt32LE(message.length, 0)
      this.#socket.write(header)
      this.#socket.write(message)
      return
    }
    const frame = Buffer.allocUnsafe(HEADER + message.length)
    frame.writeUInt32LE(message.length, 0)
    frame.set(message, HEADER)
    this.#socket.write(frame)
  }

  async close(): Promise<void> {
    this.#socket.destroy()
  }
}

/**
 * `listen` takes `unix:///path`, or `tcp://host` for any free port of it.
 * @param coalesces whether small messages that are sent together are copied together by the program
 */
export const net = (coalesces: boolean): Transport => ({
  async listen(at) {
    const { protocol, hostname, pathname } = new URL(at)
    const server = createServer({ noDelay: true })
    const connected = new Promise<Endpoint>((resolve) => {
      server.once('connection', (socket) => resolve(new NetEndpoint(socket, coalesces)))
    })
    server.listen(protocol === 'unix:' ? { path: pathname } : { host: hostname, port: 0 })
    await once(server, 'listening')
    const uri = protocol === 'unix:' ? at : `${at}:${(server.address() as AddressInfo).port}`
    return { uri, connected }
  },

  async connect(uri) {
    const { protocol, hostname, port, pathname } = new URL(uri)
    const socket =
      protocol === 'unix:'
        ? connect({ path: pathname })
        : connect({ host: hostname, port: Number(port), noDelay: true })
    await once(socket, 'connect')
    return new NetEndpoint(socket, coalesces)
  },
})
