// Node's own sockets, TCP on loopback or a Unix socket, with frames: a length of 4 bytes, then the message.
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import type { Endpoint, Receiver, Requester, RequestTransport, Transport } from './endpoint.js'

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
  readonly #reuses: boolean
  readonly #header = Buffer.alloc(HEADER)
  #headerLength = 0
  #message: Buffer<ArrayBuffer> = Buffer.alloc(0)
  #filled = 0
  #wanted = 0

  /** @param reuses memory of a message that came in several chunks, so that it is good for its receiver's call only */
  constructor(reuses: boolean) {
    this.#reuses = reuses
  }

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
    if (!this.#reuses || this.#message.length < this.#wanted) this.#message = Buffer.allocUnsafe(this.#wanted)
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

function writeFrame(socket: Socket, message: Uint8Array): void {
  if (message.length > COPIED) {
    const header = Buffer.allocUnsafe(HEADER)
    header.writeUInt32LE(message.length, 0)
    socket.write(header)
    socket.write(message)
    return
  }
  const frame = Buffer.allocUnsafe(HEADER + message.length)
  frame.writeUInt32LE(message.length, 0)
  frame.set(message, HEADER)
  socket.write(frame)
}

class NetEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly #socket: Socket
  readonly #coalesces: boolean
  readonly #parser = new Parser(true)
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
    writeFrame(this.#socket, message)
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
      for (let i = 0; i < frames; i++) writeFrame(this.#socket, message)
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

  async close(): Promise<void> {
    this.#socket.destroy()
  }
}

/** Requests as a program makes them that answers in the order in which it was asked: frames, and no number in them. */
class NetRequester implements Requester {
  readonly #write: (message: Uint8Array) => void
  readonly #socket: Socket
  readonly #waiting: ((answer: Uint8Array) => void)[] = []

  constructor(socket: Socket) {
    this.#socket = socket
    this.#write = corkedWrites(socket)
    const parser = new Parser(false)
    socket.on('data', (chunk) =>
      parser.take(chunk, (bytes, offset, length) =>
        this.#waiting.shift()?.(bytes.subarray(offset, offset + length)),
      ),
    )
    socket.on('error', () => socket.destroy())
  }

  request(message: Uint8Array): Promise<Uint8Array> {
    return new Promise((resolve) => {
      this.#waiting.push(resolve)
      this.#write(message)
    })
  }

  async close(): Promise<void> {
    this.#socket.destroy()
  }
}

/** Frames of one turn leave as one writev(2), as the documentation of `cork` has it. */
function corkedWrites(socket: Socket): (message: Uint8Array) => void {
  let corked = false
  const uncork = () => {
    corked = false
    socket.uncork()
  }
  return (message) => {
    if (!corked) {
      corked = true
      socket.cork()
      process.nextTick(uncork)
    }
    writeFrame(socket, message)
  }
}

/**
 * `at` is `unix:///path`, or `tcp://host` for any free port of it.
 * @returns where it listens
 */
async function listen(at: string, accept: (socket: Socket) => void): Promise<string> {
  const { protocol, hostname, pathname } = new URL(at)
  const server = createServer({ noDelay: true }, accept)
  server.listen(protocol === 'unix:' ? { path: pathname } : { host: hostname, port: 0 })
  await once(server, 'listening')
  return protocol === 'unix:' ? at : `${at}:${(server.address() as AddressInfo).port}`
}

async function connected(uri: string): Promise<Socket> {
  const { protocol, hostname, port, pathname } = new URL(uri)
  const socket =
    protocol === 'unix:'
      ? connect({ path: pathname })
      : connect({ host: hostname, port: Number(port), noDelay: true })
  await once(socket, 'connect')
  return socket
}

/** @param coalesces whether small messages that are sent together are copied together by the program */
export const net = (coalesces: boolean): Transport => ({
  async listen(at) {
    let accept: (socket: Socket) => void = () => {}
    const connected = new Promise<Endpoint>((resolve) => {
      accept = (socket) => resolve(new NetEndpoint(socket, coalesces))
    })
    return { uri: await listen(at, accept), connected }
  },

  connect: async (uri) => new NetEndpoint(await connected(uri), coalesces),
})

export const netRequests: RequestTransport = {
  listen: async (at, answer) => ({
    uri: await listen(at, (socket) => {
      const write = corkedWrites(socket)
      const parser = new Parser(true)
      socket.on('data', (chunk) =>
        parser.take(chunk, (bytes, offset, length) => write(answer(bytes, offset, length))),
      )
      socket.on('error', () => socket.destroy())
    }),
  }),

  connect: async (uri) => new NetRequester(await connected(uri)),
}
