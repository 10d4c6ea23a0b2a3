import type { RemoteSlab, SwapServerSession } from '@rdmakit/swap-server'

/**
 * One incarnation of a swap-server in a volume. It keeps its index for ever: after a failure the same
 * machine comes back as another one, for its memory is empty.
 */
export class VolumeServer {
  readonly index: number
  /** its addresses, as they were given */
  readonly uris: readonly string[]
  readonly session: SwapServerSession
  /** replicas that the volume has there */
  slabs = 0
  /** why it is gone; undefined while it lives */
  failure: string | undefined
  readonly #spares: RemoteSlab[] = []

  constructor(index: number, uris: readonly string[], session: SwapServerSession) {
    this.index = index
    this.uris = uris
    this.session = session
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

  /** Allocates ahead of use, as far as the server has room. */
  async fillSpares(wanted: number): Promise<void> {
    while (this.failure === undefined && this.#spares.length < wanted && this.session.freeSlabs > 0)
      this.#spares.push(...(await this.session.allocate(1)))
  }
}
