import type { RemoteSlab, SessionIdentity, SwapServerSession } from '@rdmakit/swap-server'

/** Server indexes of an engine. */
export const MAX_SERVERS = 1024

/**
 * One incarnation of a swap-server in a volume. It keeps its index for ever: after a failure the same
 * machine comes back as another one, for its memory is empty.
 */
export class VolumeServer {
  readonly index: number
  /** its addresses, as they were given */
  readonly uris: readonly string[]
  readonly #session: SwapServerSession | undefined
  /** what resumes its session; undefined when there is none */
  readonly identity: SessionIdentity | undefined
  /** replicas that the volume has there */
  slabs = 0
  /** why it is gone; undefined while it lives */
  failure: string | undefined
  /** it is gone, some slabs have their only copy there, and it may come back with that */
  away = false
  readonly #spares: RemoteSlab[] = []

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

  /** The address that answered, or the first of those given. */
  get uri(): string {
    return this.#session?.uri ?? this.uris[0] ?? `server ${this.index}`
  }

  /** slabs that it can still take */
  get room(): number {
    return this.failure === undefined ? this.#spares.length + this.session.freeSlabs : 0
  }

  /** slabs that are allocated and hold nothing yet */
  get spares(): number {
    return this.#spares.length
  }

  /** A slab of zeros, a spare one if there is one. @throws SwapServerError ENOSPC */
  async take(): Promise<RemoteSlab> {
    const slab = this.#spares.pop() ?? (await this.session.allocate(1))[0]
    if (slab === undefined) throw new Error('the server gave no slab')
    this.slabs++
    return slab
  }

  /** Gives a slab back to which nothing is under way any more. */
  async giveBack(slab: RemoteSlab): Promise<void> {
    this.slabs--
    if (this.failure === undefined) await this.session.free([slab])
  }

  hasSpare(id: number): boolean {
    return this.#spares.some((slab) => slab.id === id)
  }

  /** Gives spare slabs back that nobody has taken since. */
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
      this.#spares.push(...(await this.session.allocate(1)))
  }
}
