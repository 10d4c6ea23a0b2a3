import type { ProtectionDomain } from '@rdmakit/verbs'
import {
  ALLOCATE_TIMEOUT_MS,
  type control,
  MAX_LISTED_SLABS,
  MAX_SLABS_PER_REQUEST,
} from '../protocol/messages.js'
import { Refusal } from '../protocol/refusal.js'
import type { Slab } from './memory/slab-store.js'
import type { SessionHost } from './session-host.js'

/** Slabs that are there later are not lent: their answer, a second on its way, would find no client that waits for it. */
const LATEST_MS = ALLOCATE_TIMEOUT_MS - 1_000

/** The slabs of one session, in its protection domain. */
export class SessionSlabs {
  readonly #host: SessionHost
  readonly #tenant: string
  readonly #protectionDomain: ProtectionDomain
  readonly #slabs = new Map<number, Slab>()

  constructor(host: SessionHost, tenant: string, protectionDomain: ProtectionDomain) {
    this.#host = host
    this.#tenant = tenant
    this.#protectionDomain = protectionDomain
  }

  get size(): number {
    return this.#slabs.size
  }

  get ids(): Iterable<number> {
    return this.#slabs.keys()
  }

  /** How many more it could have now. */
  get free(): number {
    return this.#host.lending.freeFor(this.#borrower)
  }

  list(after: number): control.ListReply.$Properties {
    const slabs = [...this.#slabs.values()]
      .filter(({ id }) => id > after)
      .sort((a, b) => a.id - b.id)
      .slice(0, MAX_LISTED_SLABS)
    return { slabs: slabs.map(described) }
  }

  /**
   * @param asking `require` throws a Refusal when the client is not there any more to learn which slabs these are
   * @throws Refusal, OutOfSlabsError, and the device's errors
   */
  async allocate(
    count: number,
    asking: { isOver(): boolean; require(): void },
  ): Promise<control.Slab.$Properties[]> {
    if (count < 1 || count > MAX_SLABS_PER_REQUEST)
      throw new Refusal('EINVAL', `allocate takes 1 to ${MAX_SLABS_PER_REQUEST} slabs, not ${count}`)
    const { lending } = this.#host
    const began = performance.now()
    let slabs: Slab[]
    try {
      slabs = await lending.lend(this.#borrower, count, this.#protectionDomain)
    } catch (failure) {
      // Its protection domain is closed then, which is no failure of the server's.
      throw asking.isOver() ? new Refusal('ECANCELED', 'the session has ended') : failure
    }
    try {
      asking.require()
      if (performance.now() - began > LATEST_MS)
        throw new Refusal('ETIMEDOUT', 'the memory was there too late for a client that waits; try again')
    } catch (refusal) {
      // The client left while its memory was being pinned, or waits no more: it cannot learn which slabs these are.
      lending.takeBack(this.#tenant, slabs)
      throw refusal
    }
    for (const slab of slabs) this.#slabs.set(slab.id, slab)
    return slabs.map(described)
  }

  /** @returns how many there were @throws Refusal EINVAL: one is not of this session */
  release(ids: readonly number[]): number {
    const slabs = new Set(
      ids.map((id) => {
        const slab = this.#slabs.get(id)
        if (slab === undefined) throw new Refusal('EINVAL', `slab ${id} is not of this session`)
        return slab
      }),
    )
    for (const id of ids) this.#slabs.delete(id)
    this.#host.lending.takeBack(this.#tenant, [...slabs])
    return slabs.size
  }

  /** @returns how many there were */
  releaseAll(): number {
    const slabs = [...this.#slabs.values()]
    this.#slabs.clear()
    this.#host.lending.takeBack(this.#tenant, slabs)
    return slabs.length
  }

  /** Its tenant as the file says now; one that is not in it any more gets nothing more. */
  get #borrower() {
    return this.#host.tenants.find(this.#tenant) ?? { name: this.#tenant, quota: 0 }
  }
}

function described({ id, region }: Slab): control.Slab.$Properties {
  return { id, address: Number(region.address), rkey: region.remoteKey, length: region.length }
}
