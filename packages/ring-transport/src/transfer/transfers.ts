import { type MemoryRegion, type ScatterGatherElement, UsageError, VerbsError } from '@rdmakit/verbs'
import type { Observable } from 'rxjs'
import { TYPE } from '../native.js'
import { Assembly, type PartsHost } from '../receiving/assembly.js'
import type { RingMessage } from '../receiving/message.js'
import type { TransferHost } from './host.js'
import { Incoming } from './incoming.js'
import type { TransferSettings } from './limits.js'
import type { RingOffer } from './offer.js'
import { Outgoing, type TransmitOptions } from './outgoing.js'

/** The large messages of a connection, both ways: docs/ring-transport.md has the protocol. */
export class Transfers {
  readonly #host: TransferHost
  readonly #outgoing: Outgoing
  readonly #incoming: Incoming
  readonly #assembly: Assembly

  constructor(host: TransferHost, settings: TransferSettings) {
    this.#host = host
    this.#outgoing = new Outgoing(host, settings)
    this.#incoming = new Incoming(host, settings.maxTransferMemory, settings.maxMessageSize)
    const parts: PartsHost = {
      hold: () => host.hold(),
      reserve: (length, begin) => this.#incoming.memory.reserve(length, begin),
      deliver: (type, message) => host.deliver(type, message),
    }
    this.#assembly = new Assembly(parts, settings.longest)
  }

  get offers(): Observable<RingOffer> {
    return this.#incoming.offers
  }

  /** Transfers under way, both ways. */
  get count(): number {
    return this.#outgoing.count + this.#incoming.count + this.#assembly.count
  }

  /** bytes of memory that messages read from the peer take, or that is kept for the next */
  get memory(): number {
    return this.#incoming.memory.used
  }

  transmit(what: Uint8Array | ScatterGatherElement, options: TransmitOptions): Promise<void> {
    return this.#outgoing.transmit(what, options)
  }

  async allocate(length: number): Promise<MemoryRegion> {
    if (!Number.isSafeInteger(length) || length < 1)
      throw new UsageError(`the length of a region must be a whole number of bytes from 1, not ${length}`)
    return await this.#host.protectionDomain.allocateMemoryRegion(length, ['local-write', 'remote-read'])
  }

  /** @internal as if `number` offers had been made, and as many READs: for tests of what comes after many */
  startAt(number: number): void {
    this.#outgoing.last = number
    this.#incoming.reads.lastTag = number
  }

  /** Whether a frame of a type may come now: within a message in parts, nothing but the rest of it. */
  mayCome(type: number): boolean {
    return this.#assembly.mayCome(type)
  }

  /** A frame of type offer or settled, part or last. */
  receive(type: number, frame: RingMessage): void {
    const wrong = this.#receive(type, frame)
    if (wrong !== undefined)
      this.#host.fail(new VerbsError('EPROTO', 'receive', this.#host.object, `the peer sent ${wrong}`))
  }

  #receive(type: number, frame: RingMessage): string | undefined {
    if (type === TYPE.part || type === TYPE.last) return this.#assembly.receive(type, frame)
    const wrong = type === TYPE.offer ? this.#incoming.offered(frame) : this.#outgoing.settled(frame)
    frame.release()
    return wrong
  }

  /** The completion of an RDMA READ. */
  onRead(tag: number, status: number): void {
    this.#incoming.reads.onRead(tag, status)
  }

  /** Resolves when the peer has all that is being transmitted. */
  idle(): Promise<void> {
    return this.#outgoing.idle()
  }

  /**
   * The connection has ended, and its queue pair does nothing any more. Resolves when no message is under way
   * to the inbox any more. Never rejects.
   */
  async end(reason: unknown): Promise<void> {
    this.#outgoing.end(reason)
    this.#assembly.end()
    await this.#incoming.end(reason)
  }
}
