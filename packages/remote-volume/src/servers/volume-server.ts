import type { RemoteSlab, SessionIdentity, SwapServerSession } from '@rdmakit/swap-server'
import { UsageError } from '@rdmakit/verbs'

/** Server indexes of an engine. */
const MAX_SERVERS = 1024

/** How long others come first after a server has refused a slab, milliseconds; twice as long after each further time, */
const REFUSED_REST_MS = 10_000
/** and no longer than 2^6 times. */
const MOST_DOUBLINGS = 6

let made = 0

/**
 * One incarnation of a swap-server in a volume. After a failure the same machine comes back as another one, under
 * another index; an index is free again when nothing names the one that had it.
 */
export class VolumeServer {
  readonly index: number
  /** of two with the same addresses the one that came later has more */
  readonly incarnation = ++made
  /** its addresses, as they were given */
  readonly uris: readonly string[]
  readonly #session: SwapServerSession | undefined
  /** what resumes its session; undefined when there is none */
  readonly identity: SessionIdentity | undefined
  /** replicas that the volume has there */
  slabs = 0
  /** why it is gone; undefined while it lives */
  failure: string | undefined
  /** it has no part in the volume, yet or ever */
  joining: 'now' | 'failed' | undefined
  /** it is gone, some slabs have their only copy there, and it may come back with that */
  away = false
  readonly #spares: RemoteSlab[] = []
  readonly #allocating = new AbortController()
  /** how often it has refused a slab since it last gave one */
  #refusals = 0
  /** until when others come first, of performance.now() */
  #restsUntil = 0

  constructor(
    index: number,
    uris: readonly string[],
    session: SwapServerSession | undefined,
    identity = session?.identity,
  ) {
    this.index = index
    this.uris = uris
    this.#session = session
    this.identity = identity
  }

  /** A free index. */
  static vacant(index: number): VolumeServer {
    return VolumeServer.gone(index, [], 'it never joined', undefined)
  }

  /** One that an earlier process had and this one never reached. */
  static gone(
    index: number,
    uris: readonly string[],
    reason: string,
    identity: SessionIdentity | undefined,
  ): VolumeServer {
    const server = new VolumeServer(index, uris, undefined, identity)
    server.failure = reason
    return server
  }

  /** @throws Error for one that this process never reached */
  get session(): SwapServerSession {
    if (this.#session === undefined) throw new Error(`${this.uri} was never reached`)
    return this.#session
  }

  /** This process has, or had, a session with it. */
  get reached(): boolean {
    return this.#session !== undefined
  }

  /** the index is free, and not that of a server that is gone */
  get isVacant(): boolean {
    return this.uris.length === 0
  }

  /** Whether `other` is a later incarnation of this one. One that failed to join is none. */
  isBefore(other: VolumeServer): boolean {
    return other.joining === undefined && other.incarnation > this.incarnation && other.uris === this.uris
  }

  /** The address that answered, or the first of those given. */
  get uri(): string {
    return this.#session?.uri ?? this.uris[0] ?? `server ${this.index}`
  }

  /** slabs that it can still take */
  get room(): number {
    return this.failure === undefined ? this.#spares.length + this.session.freeSlabs : 0
  }

  /**
   * It has refused a slab although it said that it has some, as one whose machine is out of memory, or one that lies:
   * others come first.
   */
  get hesitates(): boolean {
    return this.#spares.length === 0 && performance.now() < this.#restsUntil
  }

  /** slabs that are allocated and hold nothing yet */
  get spares(): number {
    return this.#spares.length
  }

  /** A slab of zeros, a spare one if there is one. @throws SwapServerError ENOSPC */
  async take(): Promise<RemoteSlab> {
    const slab = this.#spares.pop() ?? (await this.#allocate())
    if (slab === undefined) throw new Error('the server allocated no slab')
    this.slabs++
    return slab
  }

  /** Nothing is allocated any more, not even what the server was asked for: its answer may take a minute. */
  endAllocation(): void {
    this.#allocating.abort(new Error('the volume was closed'))
  }

  async #allocate(): Promise<RemoteSlab | undefined> {
    try {
      const [slab] = await this.session.allocate(1, this.#allocating)
      this.#refusals = 0
      return slab
    } catch (failure) {
      const doublings = Math.min(this.#refusals++, MOST_DOUBLINGS)
      this.#restsUntil = performance.now() + REFUSED_REST_MS * 2 ** doublings
      throw failure
    }
  }

  /** Gives a slab back to which nothing is under way any more. */
  async giveBack(slab: RemoteSlab): Promise<void> {
    this.slabs--
    if (this.failure === undefined) await this.session.free([slab])
  }

  hasSpare(id: number): boolean {
    return this.#spares.some((slab) => slab.id === id)
  }

  /** Gives spare slabs back that have not been taken since. */
  async giveSparesBack(ids: readonly number[]): Promise<void> {
    const going = this.#spares.filter(({ id }) => ids.includes(id))
    for (const slab of going) this.#spares.splice(this.#spares.indexOf(slab), 1)
    if (this.failure === undefined) await this.session.free(going)
  }

  /** Slabs of the session that nothing uses: spare ones from now on. */
  keep(slabs: readonly RemoteSlab[]): void {
    this.#spares.push(...slabs)
  }

  /** Allocates ahead of use, as far as the server has room. */
  async fillSpares(wanted: number): Promise<void> {
    while (this.failure === undefined && this.#spares.length < wanted && this.session.freeSlabs > 0)
      this.#spares.push(...(await this.session.allocate(1, this.#allocating)))
  }
}

/** The lowest index that is not `used`. @throws UsageError: there is none */
export function freeIndex(used: (index: number) => boolean): number {
  for (let index = 0; index < MAX_SERVERS; index++) if (!used(index)) return index
  throw new UsageError(`${MAX_SERVERS} servers of one volume have failed, and each is still referenced`)
}
