import { calling } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import type { ProtectionDomain } from '../device/protection-domain.js'
import { native } from '../native.js'
import type { QueuePair } from '../queue-pair/queue-pair.js'
import type { MemoryRegion } from './memory-region.js'

/**
 * A memory window of type 2 (ibv_mw): remote access to a part of a region, granted and revoked by work requests, without
 * the cost of a registration. `bind-memory-window` on a queue pair grants it; `local-invalidate`, or the peer's
 * `send-with-invalidate`, revokes it. A window is closed with the region
 * and with the queue pair that it was last bound to.
 */
export class MemoryWindow extends Resource {
  #remoteKey: number
  #region: MemoryRegion | undefined
  #queuePair: QueuePair | undefined

  /** @internal made by {@link ProtectionDomain.allocateMemoryWindow} */
  constructor(protectionDomain: ProtectionDomain) {
    super(
      calling(protectionDomain.description, () => native.allocMw(protectionDomain.handle)),
      [protectionDomain],
    )
    this.#remoteKey = native.mwKey(this.handle)
  }

  get description(): string {
    return `memory window 0x${this.#remoteKey.toString(16)}`
  }

  /** The key that peers use, valid once the last bind has completed. Each bind gives another one. */
  get remoteKey(): number {
    return this.#remoteKey
  }

  /** @internal the key of the next bind: the low 8 bits are the consumer's (ibv_inc_rkey) */
  get nextKey(): number {
    const tag = (this.#remoteKey + 1) & 0xff
    return ((this.#remoteKey & ~0xff) | tag) >>> 0
  }

  /** @internal a bind was posted: neither the region nor the queue pair can go before the window */
  bound(key: number, region: MemoryRegion, queuePair: QueuePair): void {
    this.#remoteKey = key
    this.adopt(this.#region, region)
    this.#region = region
    this.adopt(this.#queuePair, queuePair)
    this.#queuePair = queuePair
  }
}
