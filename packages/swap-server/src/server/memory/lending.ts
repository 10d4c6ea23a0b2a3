import { formatSize } from '@rdmakit/operator-kit'
import type { ProtectionDomain } from '@rdmakit/verbs'
import type { Logger } from 'pino'
import type { control } from '../../protocol/messages.js'
import { Refusal } from '../../protocol/refusal.js'
import { HostHeadroom } from './host-headroom.js'
import { type HostFiles, type HostMemory, HostMemorySource } from './host-memory.js'
import { Reclaim, type SlabOwner } from './reclaim.js'
import { OutOfSlabsError, type Slab, SlabStore } from './slab-store.js'

/** A borrower of slabs, as far as their number matters. */
export interface Borrower {
  readonly name: string
  /** bytes that its sessions may hold together; undefined: as much as there is */
  readonly quota: number | undefined
}

export interface LendingOptions {
  /** bytes to lend at most, and of a slab: see `SlabStore` */
  readonly memory: number
  readonly slabSize: number
  readonly owners: () => Iterable<SlabOwner>
  readonly log: Logger
  /** bytes that the host keeps; default 0: the host is not looked at */
  readonly headroom?: number | undefined
  /** whether what is lent is pinned, as RDMA devices do it; default: no */
  readonly pins?: (() => boolean) | undefined
  /** milliseconds between two looks at the host, default 500 */
  readonly interval?: number | undefined
  /** milliseconds, see `Reclaim` */
  readonly patience?: number | undefined
  /** for tests: where the kernel tells of memory */
  readonly files?: Partial<HostFiles> | undefined
}

/** Memory that an operator holds back. */
export interface Holding {
  /** bytes to lend less than now; 0: lend again what there is; Infinity: lend nothing */
  readonly bytes: number
  /** milliseconds for which it holds */
  readonly duration: number
  /** milliseconds to wait for the memory to come back, at most */
  readonly patience: number
}

/** The result of `Lending.hold`. */
export interface HoldOutcome {
  /** slabs that were to come back */
  readonly asked: number
  readonly freed: number
  /** of those that did not: owners are moving them */
  readonly moving: number
  /** bytes */
  readonly slabSize: number
}

const HOLD_POLL_MS = 20

/** How many slabs may be lent: what the host can spare, what each tenant may have, what the operator holds back. */
export class Lending {
  readonly store: SlabStore
  readonly reclaim: Reclaim
  readonly #options: LendingOptions
  readonly #headroom: HostHeadroom
  #source: HostMemorySource | undefined
  /** as it was last looked at; undefined: it was not */
  #host: HostMemory | undefined
  readonly #timer: NodeJS.Timeout | undefined
  /** slabs by tenant */
  readonly #taken = new Map<string, number>()
  #all = 0
  /** of these, slabs that are being pinned: the kernel does not count them as used yet */
  #coming = 0
  /** slabs that may be lent at most, and until when; of the operator */
  #hold: { readonly slabs: number; readonly until: number } | undefined
  /** All of it is wanted back for good: the server ends. */
  #ends = false

  constructor(options: LendingOptions) {
    this.#options = options
    this.store = new SlabStore(options.memory, options.slabSize)
    this.#headroom = new HostHeadroom(options.headroom ?? 0)
    this.reclaim = new Reclaim({
      owners: options.owners,
      log: options.log,
      ...(options.patience === undefined ? {} : { patience: options.patience }),
    })
    this.#timer = setInterval(() => this.#look(), options.interval ?? 500)
    this.#timer.unref()
    this.#look()
  }

  /** slabs that can be lent now, to any tenant with quota */
  get free(): number {
    const bytes = Math.min(this.#headroom.spare, this.#pinnable)
    const spare = Math.floor(bytes / this.store.slabSize) - this.#coming
    return Math.max(0, Math.min(this.#most - this.#all, spare))
  }

  /** slabs that this tenant can have now */
  freeFor(tenant: Borrower): number {
    return Math.max(0, Math.min(this.free, this.#quota(tenant) - this.taken(tenant.name)))
  }

  /** slabs that a tenant's sessions hold together */
  taken(tenant: string): number {
    return this.#taken.get(tenant) ?? 0
  }

  /**
   * Lends slabs to a tenant, in the protection domain of one of its sessions.
   * @throws OutOfSlabsError with the reason; see {@link SlabStore.allocate}
   */
  async lend(tenant: Borrower, count: number, protectionDomain: ProtectionDomain): Promise<Slab[]> {
    this.#admit(tenant, count)
    this.#all += count
    this.#taken.set(tenant.name, this.taken(tenant.name) + count)
    this.#coming += count
    try {
      return await this.store.allocate(protectionDomain, count)
    } catch (failure) {
      this.#return(tenant.name, count)
      throw failure
    } finally {
      this.#coming -= count
    }
  }

  #admit(tenant: Borrower, count: number): void {
    const { store } = this
    const refuse = (why: string) => {
      throw new OutOfSlabsError(`${count} slabs of ${store.slabSize} bytes were requested, but ${why}`)
    }
    const left = Math.max(0, this.#quota(tenant) - this.taken(tenant.name))
    if (count > left)
      refuse(
        `tenant "${tenant.name}" may have ${left} more: its quota is ${formatSize(tenant.quota ?? 0)}, ${this.taken(tenant.name)} slabs are taken`,
      )
    this.#read()
    if (count > this.free)
      refuse(
        this.free < this.#most - this.#all
          ? `${this.free} can be lent: ${this.#obstacle}`
          : this.#hold !== undefined && this.#most < store.total
            ? `${this.free} can be lent: the operator holds memory back`
            : `${this.free} are free`,
      )
  }

  /** Frees slabs of a tenant. */
  takeBack(tenant: string, slabs: readonly Slab[]): void {
    this.store.release(slabs)
    this.#return(tenant, slabs.length)
    this.reclaim.freed(slabs.map(({ id }) => id))
  }

  #return(tenant: string, count: number): void {
    this.#all -= count
    const left = this.taken(tenant) - count
    if (left > 0) this.#taken.set(tenant, left)
    else this.#taken.delete(tenant)
  }

  /**
   * Lends less, and asks owners for slabs beyond that. A later call replaces an earlier one.
   * @throws Refusal ESHUTDOWN: the server is ending, and wants all of its memory back
   */
  async hold({ bytes, duration, patience }: Holding): Promise<HoldOutcome> {
    if (this.#ends)
      throw new Refusal('ESHUTDOWN', 'the server is ending, and asks for all of its memory back')
    const now = performance.now()
    const asked = Math.min(this.#all, Math.ceil(bytes / this.store.slabSize))
    const held = bytes === 0 ? undefined : { slabs: this.#all - asked, until: now + duration }
    this.#hold = held
    this.#look()
    while (held !== undefined && this.#hold === held && this.#all > held.slabs) {
      if (performance.now() - now > patience) break
      await new Promise((resolve) => setTimeout(resolve, HOLD_POLL_MS))
    }
    const freed = held === undefined ? 0 : asked - Math.max(0, this.#all - held.slabs)
    return { asked, freed, moving: this.reclaim.moving, slabSize: this.store.slabSize }
  }

  /** bytes that are lent */
  get lent(): number {
    return this.#all * this.store.slabSize
  }

  /**
   * Lends nothing any more, and asks owners for all that is lent. Resolves when it is back, when no owner can
   * give more of it, after `patience` milliseconds, or when `now` aborts. A session that lingers is not waited for.
   */
  async drain(patience: number, now?: AbortSignal): Promise<void> {
    // Not a signal of AbortSignal.timeout in AbortSignal.any: Node holds that weakly, and it may never come.
    const deadline = performance.now() + patience
    const over = () => now?.aborted === true || performance.now() >= deadline
    this.#lendNoMore()
    this.#look()
    while (this.#all > 0 && !over() && !this.reclaim.exhausted)
      await new Promise((resolve) => setTimeout(resolve, HOLD_POLL_MS))
  }

  /** The part of the server's memory that cannot be lent now, for people; undefined: all of it can. */
  get shortfall(): string | undefined {
    this.#read()
    const { slabSize, total } = this.store
    if (this.free >= total - this.#all) return undefined
    return `${formatSize(this.free * slabSize)} of ${formatSize((total - this.#all) * slabSize)} can be lent: ${this.#obstacle}`
  }

  get pressure(): control.Pressure.$Properties {
    const { memory, wanted } = this.#headroom
    return {
      availableBytes: Number.isFinite(memory.available) ? memory.available : 0,
      headroomBytes: wanted,
      someAvg10: memory.stalled,
      reclaimingSlabs: this.reclaim.moving,
      reclaimedSlabs: this.reclaim.reclaimed,
    }
  }

  /** Lends nothing any more: clients may ask until they know of the server's end. */
  close(): void {
    clearInterval(this.#timer)
    this.#lendNoMore()
    this.reclaim.close()
  }

  #lendNoMore(): void {
    this.#ends = true
    this.#hold = { slabs: 0, until: Number.POSITIVE_INFINITY }
  }

  /** slabs that may be lent in all */
  get #most(): number {
    if (this.#hold !== undefined && this.#hold.until <= performance.now()) this.#hold = undefined
    return Math.min(this.store.total, this.#hold?.slabs ?? Number.POSITIVE_INFINITY)
  }

  /** bytes that may still be pinned, where slabs are */
  get #pinnable(): number {
    return this.#pins ? (this.#host?.pinnable ?? Number.POSITIVE_INFINITY) : Number.POSITIVE_INFINITY
  }

  get #pins(): boolean {
    return this.#options.pins?.() ?? false
  }

  /** Why no more can be lent, where that is the host's doing. */
  get #obstacle(): string {
    if (this.#pinnable < this.#headroom.spare)
      return `RLIMIT_MEMLOCK lets the server pin ${formatSize(this.#pinnable)} more; raise "ulimit -l", or LimitMEMLOCK= of its unit`
    return `the host keeps ${formatSize(this.#headroom.wanted)} of its memory for itself (${this.#host?.limit})`
  }

  #quota({ quota }: Borrower): number {
    return quota === undefined ? Number.POSITIVE_INFINITY : Math.floor(quota / this.store.slabSize)
  }

  #look(): void {
    const { slabSize } = this.store
    this.#read()
    const missing = Math.ceil(this.#headroom.missing / slabSize)
    this.reclaim.want(Math.min(this.#all, Math.max(missing, this.#all - this.#most)))
  }
  #read(): void {
    try {
      if (this.#headroom.bytes === 0 && !this.#pins) return
      this.#source ??= new HostMemorySource(this.#options.files)
      this.#host = this.#source.read()
      this.#headroom.update(this.#host)
    } catch (failure) {
      // The last known state is used for now.
      this.#options.log.error({ err: failure }, "cannot read the host's memory")
    }
  }
}
