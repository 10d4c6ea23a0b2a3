// One end of an rping connection, and the one message that its protocol has:
//
//   client                                         server
//     │ SEND  where the ping lies ───────────────▶   │
//     │ ◀──────────────────────────── RDMA READ      │
//     │ ◀──────────────────────────── SEND  go ahead │
//     │ SEND  where the pong goes ───────────────▶   │
//     │ ◀──────────────────────────── RDMA WRITE     │
//     │ ◀──────────────────────────── SEND  go ahead │
import type {
  CompletedOpcode,
  CompletionChannel,
  CompletionQueue,
  ConnectionId,
  MemoryRegion,
  ProtectionDomain,
  QueuePair,
  WorkCompletion,
} from '@rdmakit/verbs'

/** A peer that is silent for this long is given up. */
const DEADLINE_MS = 10_000

/** struct rping_rdma_info of librdmacm's rping.c: __be64 buf, __be32 rkey, __be32 size. */
const MESSAGE_BYTES = 16

/** As large as librdmacm's rping takes. */
export const MOST_BYTES = 65_535

/** Memory of the other end. */
export interface RemoteBuffer {
  readonly address: bigint
  readonly key: number
  readonly length: number
}

/** The connection is over, while the other end was waited for. */
export class DisconnectedError extends Error {}

export class Peer implements Disposable {
  readonly protectionDomain: ProtectionDomain
  readonly #id: ConnectionId
  readonly #channel: CompletionChannel
  readonly #completions: CompletionQueue
  readonly #queuePair: QueuePair
  readonly #messages: MemoryRegion // the outgoing one, then the incoming one
  readonly #stop: AbortSignal | undefined
  #taken: WorkCompletion[] = []

  /**
   * Everything that a connection needs, with a receive posted: what comes next is connect or accept.
   * `stop` ends whatever is waited for.
   */
  static async make(id: ConnectionId, stop?: AbortSignal): Promise<Peer> {
    const protectionDomain = id.context.allocateProtectionDomain()
    const messages = await protectionDomain.allocateMemoryRegion(2 * MESSAGE_BYTES)
    return new Peer(id, protectionDomain, messages, stop)
  }

  private constructor(
    id: ConnectionId,
    protectionDomain: ProtectionDomain,
    messages: MemoryRegion,
    stop: AbortSignal | undefined,
  ) {
    this.#id = id
    this.protectionDomain = protectionDomain
    this.#messages = messages
    this.#stop = stop
    this.#channel = id.context.createCompletionChannel()
    this.#completions = id.context.createCompletionQueue({ entries: 16, channel: this.#channel })
    this.#queuePair = id.createQueuePair(protectionDomain, {
      sendQueue: this.#completions,
      maxSend: 4,
      maxReceive: 2,
    })
    this.#postReceive()
  }

  /**
   * Tells the other end where `region` lies. Its answer shows that it has the message, which may then be
   * overwritten; a client that has what it wanted may leave before the message's completion comes.
   */
  send(region: MemoryRegion): void {
    const message = Buffer.from(this.#messages.buffer, 0, MESSAGE_BYTES)
    message.writeBigUInt64BE(region.address)
    message.writeUInt32BE(region.remoteKey, 8)
    message.writeUInt32BE(region.length, 12)
    this.#queuePair.postSend({
      opcode: 'send',
      data: [{ region: this.#messages, length: MESSAGE_BYTES }],
    })
  }

  /** What the other end sends next. A "go ahead" has the form of any message; its fields mean nothing. */
  async receive(): Promise<RemoteBuffer> {
    const { byteLength } = await this.#completion('receive')
    if (byteLength !== MESSAGE_BYTES)
      throw new Error(`the peer sent ${byteLength} bytes, a message of rping has ${MESSAGE_BYTES}`)
    const message = Buffer.from(this.#messages.buffer, MESSAGE_BYTES, MESSAGE_BYTES)
    const buffer = {
      address: message.readBigUInt64BE(),
      key: message.readUInt32BE(8),
      length: message.readUInt32BE(12),
    }
    // Before the answer that lets the other end send again.
    this.#postReceive()
    return buffer
  }

  /** Copies all of the other end's buffer into `region`. */
  async read(region: MemoryRegion, from: RemoteBuffer): Promise<void> {
    await this.#transfer('rdma-read', region, from.length, from)
  }

  /** Copies the first `length` bytes of `region` into the other end's buffer. */
  async write(region: MemoryRegion, length: number, to: RemoteBuffer): Promise<void> {
    await this.#transfer('rdma-write', region, length, to)
  }

  [Symbol.dispose](): void {
    this.#id.disconnect()
    this.#id.close()
    this.protectionDomain.close()
    this.#channel.close()
  }

  async #transfer(
    opcode: 'rdma-read' | 'rdma-write',
    region: MemoryRegion,
    length: number,
    { address: remoteAddress, key: remoteKey }: RemoteBuffer,
  ): Promise<void> {
    this.#queuePair.postSend({ opcode, data: [{ region, length }], remoteAddress, remoteKey })
    await this.#completion(opcode)
  }

  #postReceive(): void {
    this.#queuePair.postReceive({
      data: [{ region: this.#messages, offset: MESSAGE_BYTES, length: MESSAGE_BYTES }],
    })
  }

  /** The next completion of this kind. Earlier completions of other kinds are kept for later calls. */
  async #completion(opcode: CompletedOpcode): Promise<WorkCompletion> {
    const silence = AbortSignal.timeout(DEADLINE_MS)
    const signal = this.#stop ? AbortSignal.any([this.#stop, silence]) : silence
    for (;;) {
      const at = this.#taken.findIndex((completion) => completion.opcode === opcode)
      if (at >= 0) return this.#taken.splice(at, 1)[0] as WorkCompletion
      const next = await this.#completions.wait(16, { signal }).catch((reason: unknown) => {
        throw silence.aborted ? new Error(`the peer says nothing for ${DEADLINE_MS / 1000} s`) : reason
      })
      const failed = next.find(({ status }) => status !== 'success')
      if (failed?.status === 'flushed') throw new DisconnectedError('the peer disconnected')
      if (failed !== undefined) throw new Error(`${opcode} ended with ${failed.status}`)
      this.#taken.push(...next.filter(({ opcode }) => opcode !== 'send'))
    }
  }
}
