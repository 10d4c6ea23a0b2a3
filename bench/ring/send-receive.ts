// Step 0, without a ring: each message is a SEND from a registered buffer into a posted one, copied at both
// ends, and each completion an event of the channel. This is how a socket would be built on verbs.
import {
  type CompletionQueue,
  ConnectionId,
  Listener,
  type MemoryRegion,
  type QueuePair,
} from '@rdmakit/verbs'
import type { Endpoint, Receiver, Transport } from './endpoint.js'

/** Bytes of all buffers of one kind, and how many there are at least and at most. */
const BUFFERS_BYTES = 4 * 2 ** 20
const LEAST_DEPTH = 8
const MOST_DEPTH = 128
/** The first byte of the message that says that half of the buffers are free again. */
const CREDIT = 0xff
/** Buffers that are for credit alone. */
const RESERVED = 4

class SendReceiveEndpoint implements Endpoint {
  receiver: Receiver = () => {}
  readonly #id: ConnectionId
  readonly #queuePair: QueuePair
  readonly #queue: CompletionQueue
  readonly #outgoing: Buffers
  readonly #incoming: Buffers
  /** messages that the peer has buffers for */
  #credit: number
  #consumed = 0
  #closed = false
  #writable: (() => void) | undefined

  static async make(id: ConnectionId, size: number): Promise<SendReceiveEndpoint> {
    const depth = Math.max(LEAST_DEPTH, Math.min(MOST_DEPTH, Math.floor(BUFFERS_BYTES / size)))
    const domain = id.context.allocateProtectionDomain()
    const bytes = Math.max(size, 8)
    const regions = [0, 1].map(() => domain.allocateMemoryRegion((depth + RESERVED) * bytes))
    const [outgoing, incoming] = (await Promise.all(regions)) as [MemoryRegion, MemoryRegion]
    const channel = id.context.createCompletionChannel()
    const queue = id.context.createCompletionQueue({
      entries: 2 * (depth + RESERVED),
      channel,
      progress: 'manual',
    })
    const queuePair = id.createQueuePair(domain, {
      sendQueue: queue,
      maxSend: depth + RESERVED,
      maxReceive: depth + RESERVED,
    })
    return new SendReceiveEndpoint(
      id,
      queuePair,
      queue,
      new Buffers(outgoing, bytes),
      new Buffers(incoming, bytes),
    )
  }

  private constructor(
    id: ConnectionId,
    queuePair: QueuePair,
    queue: CompletionQueue,
    outgoing: Buffers,
    incoming: Buffers,
  ) {
    this.#id = id
    this.#queuePair = queuePair
    this.#queue = queue
    this.#outgoing = outgoing
    this.#incoming = incoming
    this.#credit = incoming.count - RESERVED
    for (let i = 0; i < incoming.count; i++) this.#postReceive(i)
  }

  /** Once connected. The owner first gets a turn to set the receiver. */
  start(): void {
    setImmediate(() => this.#serve())
  }

  async #serve(): Promise<void> {
    try {
      while (!this.#closed) {
        for (const { opcode, status, workRequestId, byteLength } of await this.#queue.wait(64)) {
          if (status === 'flushed') return
          if (status !== 'success') throw new Error(`a completion with ${status}`)
          if (opcode === 'receive') this.#take(Number(workRequestId), byteLength)
          else this.#outgoing.free.push(Number(workRequestId))
        }
        this.#writable?.()
      }
    } catch (failure) {
      if (!this.#closed) throw failure
    }
  }

  #take(buffer: number, length: number): void {
    const copy = Buffer.from(this.#incoming.of(buffer, length))
    this.#postReceive(buffer)
    const half = (this.#incoming.count - RESERVED) >> 1
    if (copy[0] === CREDIT) {
      this.#credit += half
      return
    }
    if (++this.#consumed === half) {
      this.#consumed = 0
      this.#post(Buffer.from([CREDIT]))
    }
    this.receiver(copy, 0, length)
  }

  #postReceive(buffer: number): void {
    this.#queuePair.postReceive({ workRequestId: BigInt(buffer), data: [this.#incoming.element(buffer)] })
  }

  /** False when every buffer is under way. */
  #post(message: Uint8Array): boolean {
    const buffer = this.#outgoing.free.pop()
    if (buffer === undefined) return false
    this.#outgoing.of(buffer, message.length).set(message)
    this.#queuePair.postSend({
      workRequestId: BigInt(buffer),
      opcode: 'send',
      data: [{ ...this.#outgoing.element(buffer), length: message.length }],
    })
    return true
  }

  #trySend(message: Uint8Array): boolean {
    // Credit must find a buffer whenever it is due.
    if (this.#credit === 0 || this.#outgoing.free.length <= RESERVED || !this.#post(message)) return false
    this.#credit--
    return true
  }

  send(message: Uint8Array): void {
    if (!this.#trySend(message)) throw new Error('no buffer is free')
  }

  async stream(message: Uint8Array, count: number): Promise<void> {
    for (let sent = 0; sent < count; ) {
      if (this.#trySend(message)) sent++
      else
        await new Promise<void>((resolve) => {
          this.#writable = resolve
        })
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#id.disconnect()
  }
}

/** A region in equal parts. */
class Buffers {
  readonly count: number
  readonly free: number[]
  readonly #region: MemoryRegion
  readonly #bytes: number

  constructor(region: MemoryRegion, bytes: number) {
    this.#region = region
    this.#bytes = bytes
    this.count = region.length / bytes
    this.free = Array.from({ length: this.count }, (_, i) => i)
  }

  of(buffer: number, length: number): Uint8Array {
    return new Uint8Array(this.#region.buffer, buffer * this.#bytes, length)
  }

  element(buffer: number) {
    return { region: this.#region, offset: buffer * this.#bytes, length: this.#bytes }
  }
}

export const sendReceive = (size: number): Transport => ({
  async listen(at) {
    let resolve: (endpoint: Endpoint) => void
    let reject: (failure: unknown) => void
    const connected = new Promise<Endpoint>((...both) => {
      ;[resolve, reject] = both
    })
    const listener = await Listener.listen(at, async ({ id }) => {
      try {
        const endpoint = await SendReceiveEndpoint.make(id, size)
        await id.accept()
        endpoint.start()
        resolve(endpoint)
      } catch (failure) {
        reject(failure)
      }
    })
    return { uri: listener.uri, connected }
  },

  async connect(uri) {
    const id = await ConnectionId.resolve(uri)
    const endpoint = await SendReceiveEndpoint.make(id, size)
    await id.connect()
    endpoint.start()
    return endpoint
  },
})
