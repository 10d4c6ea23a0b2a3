import { VerbsError } from '@rdmakit/verbs'
import type { Logger } from 'pino'

/** A session, as far as giving memory back goes. */
export interface SlabOwner {
  readonly client: string
  /** its client can be asked now */
  readonly present: boolean
  /** its tenant uses only what others leave */
  readonly opportunistic: boolean
  /** of the slabs that it holds */
  readonly slabIds: Iterable<number>
  /** @returns milliseconds since each was used last */
  activity(ids: readonly number[]): Promise<readonly number[]>
  /** @returns those that it will move and free */
  reclaim(ids: readonly number[]): Promise<readonly number[]>
}

export interface ReclaimOptions {
  readonly owners: () => Iterable<SlabOwner>
  readonly log: Logger
  /** milliseconds in which an owner must free one of the slabs that it said it would; default 30000 */
  readonly patience?: number | undefined
  /** milliseconds between two checks of the missing number; default 1000 */
  readonly interval?: number | undefined
  readonly random?: (() => number) | undefined
}

/** Infiniswap, §4.3: so many more than needed are looked at, for the least active of a few is good enough. */
const MORE_CANDIDATES = 5
/** Slabs asked for in one round; the next one sees what became of them. */
const MAX_ROUND = 64
/** A slab that its owner cannot move now, or was not asked for by its current process, is not asked for so soon. */
const REFUSED_REST_MS = 5_000
/** Nor is one whose owner said that it would move it and did not. */
const STALLED_REST_MS = 60_000
const WARN_INTERVAL_MS = 30_000

/** A slab that is not asked for. */
interface Rest {
  /** of performance.now() */
  readonly until: number
  /** its owner has said that it cannot move it; otherwise it has not said so, or not done what it said */
  readonly refused: boolean
}

/**
 * Gets slabs back from their owners, the least active ones first. It never takes one: the device does not ask
 * this process, so a slab that vanishes under its owner is a lost page, and one that stays is only a slow host.
 */
export class Reclaim {
  readonly #options: ReclaimOptions
  readonly #patience: number
  readonly #timer: NodeJS.Timeout
  /** slabs that owners said they would move */
  readonly #moving = new Map<number, SlabOwner>()
  readonly #resting = new Map<number, Rest>()
  /** when each owner was asked, or freed something, last */
  readonly #progress = new Map<SlabOwner, number>()
  #wanted = 0
  #reclaimed = 0
  #round: Promise<void> | undefined
  #warned = Number.NEGATIVE_INFINITY
  #closed = false

  constructor(options: ReclaimOptions) {
    this.#options = options
    this.#patience = options.patience ?? 30_000
    this.#timer = setInterval(() => this.#look(), options.interval ?? 1_000)
    this.#timer.unref()
  }

  /** slabs that owners are moving */
  get moving(): number {
    return this.#moving.size
  }

  /** slabs that came back since the start */
  get reclaimed(): number {
    return this.#reclaimed
  }

  /** slabs that are wanted and that no owner moves (yet) */
  get missing(): number {
    return Math.max(0, this.#wanted - this.#moving.size)
  }

  /**
   * No owner moves slabs, and those that can be asked have refused: lent slabs stay lent. An owner that was asked and did
   * not answer, or is slower than `patience`, may be moving them.
   */
  get exhausted(): boolean {
    if (this.#round !== undefined || this.#moving.size > 0 || this.#draw(1).size > 0) return false
    for (const owner of this.#options.owners()) {
      if (!owner.present) continue
      for (const id of owner.slabIds) if (this.#resting.get(id)?.refused === false) return false
    }
    return true
  }

  /** The number of slabs that should come back, including those being moved; replaces the previous number. */
  want(slabs: number): void {
    this.#wanted = slabs
    if (this.missing > 0) this.#start()
  }

  /** These slabs are free, whoever asked for them. */
  freed(ids: Iterable<number>): void {
    const now = performance.now()
    for (const id of ids) {
      this.#resting.delete(id)
      if (this.#wanted > 0) {
        this.#wanted--
        this.#reclaimed++
      }
      const owner = this.#moving.get(id)
      if (owner === undefined) continue
      this.#moving.delete(id)
      this.#progress.set(owner, now)
    }
  }

  /**
   * Another process has the owner's session: it does not know what the one before said it would move. It is asked when it
   * has had time to learn what it holds; until then it would refuse.
   */
  resumed(owner: SlabOwner): void {
    this.#progress.delete(owner)
    const ids = [...owner.slabIds]
    for (const id of ids) this.#moving.delete(id)
    this.#rest(ids, false)
  }

  close(): void {
    this.#closed = true
    clearInterval(this.#timer)
  }

  #look(): void {
    const now = performance.now()
    for (const [id, { until }] of this.#resting) if (until <= now) this.#resting.delete(id)
    const moving = new Set(this.#moving.values())
    for (const [owner, since] of this.#progress) {
      if (!moving.has(owner)) this.#progress.delete(owner)
      else if (now - since > this.#patience) this.#giveUp(owner, now)
    }
    if (this.missing > 0) this.#start()
  }

  #giveUp(owner: SlabOwner, now: number): void {
    this.#progress.delete(owner)
    let slabs = 0
    for (const [id, of] of this.#moving) {
      if (of !== owner) continue
      this.#moving.delete(id)
      this.#resting.set(id, { until: now + STALLED_REST_MS, refused: false })
      slabs++
    }
    this.#options.log.warn({ client: owner.client, slabs }, 'a client moves none of its slabs; asking others')
  }

  #start(): void {
    if (this.#closed) return
    this.#round ??= this.#run()
      .catch((failure) => this.#options.log.error({ err: failure }, 'reclaim failed'))
      .finally(() => {
        this.#round = undefined
      })
  }

  async #run(): Promise<void> {
    while (this.missing > 0 && !this.#closed) {
      const count = Math.min(this.missing, MAX_ROUND)
      const candidates = this.#draw(count + MORE_CANDIDATES)
      if (candidates.size === 0) return this.#warn()
      const idle = await this.#activity(candidates)
      const chosen = [...idle].sort(([, a], [, b]) => b - a).slice(0, count)
      const asked = chosen.map(([id]) => [id, candidates.get(id) as SlabOwner] as const)
      await Promise.all([...byOwner(asked)].map(([owner, ids]) => this.#ask(owner, ids)))
    }
  }

  /** Slabs at random, of opportunistic tenants first. */
  #draw(count: number): Map<number, SlabOwner> {
    const random = this.#options.random ?? Math.random
    const drawn = new Map<number, SlabOwner>()
    const owners = [...this.#options.owners()].filter(({ present }) => present)
    for (const first of [true, false]) {
      const pool: (readonly [number, SlabOwner])[] = []
      for (const owner of owners) {
        if (owner.opportunistic !== first) continue
        for (const id of owner.slabIds)
          if (!this.#moving.has(id) && !this.#resting.has(id)) pool.push([id, owner])
      }
      while (drawn.size < count && pool.length > 0) {
        const at = Math.floor(random() * pool.length)
        const [id, owner] = pool[at] as readonly [number, SlabOwner]
        pool[at] = pool[pool.length - 1] as readonly [number, SlabOwner]
        pool.pop()
        drawn.set(id, owner)
      }
    }
    return drawn
  }

  /** Milliseconds of idleness by slab, of those whose owners answer. */
  async #activity(candidates: ReadonlyMap<number, SlabOwner>): Promise<Map<number, number>> {
    const idle = new Map<number, number>()
    await Promise.all(
      [...byOwner(candidates)].map(async ([owner, ids]) => {
        try {
          const answer = await owner.activity(ids)
          for (const [at, id] of ids.entries()) idle.set(id, answer[at] ?? 0)
        } catch (failure) {
          this.#rest(ids, isAnswer(failure))
          this.#options.log.warn({ client: owner.client, err: failure }, 'a client does not report its slabs')
        }
      }),
    )
    return idle
  }

  async #ask(owner: SlabOwner, chosen: readonly number[]): Promise<void> {
    const held = new Set(owner.slabIds)
    // Those that rest now have another process since they were drawn.
    const ids = chosen.filter((id) => held.has(id) && !this.#resting.has(id))
    if (ids.length === 0) return
    // Before the answer: the first Free may be handled before it.
    for (const id of ids) this.#moving.set(id, owner)
    this.#progress.set(owner, performance.now())
    let accepted: readonly number[] = []
    let answered = true
    try {
      accepted = await owner.reclaim(ids)
    } catch (failure) {
      answered = isAnswer(failure)
      this.#options.log.warn({ client: owner.client, err: failure }, 'cannot ask a client for its slabs')
    }
    const refused = ids.filter((id) => this.#moving.has(id) && !accepted.includes(id))
    for (const id of refused) this.#moving.delete(id)
    this.#rest(refused, answered)
    this.#options.log.info(
      { client: owner.client, asked: ids.length, accepted: accepted.length },
      'asked for slabs back',
    )
  }

  #rest(ids: readonly number[], refused: boolean): void {
    const until = performance.now() + REFUSED_REST_MS
    for (const id of ids) this.#resting.set(id, { until, refused })
  }

  #warn(): void {
    const now = performance.now()
    if (now - this.#warned < WARN_INTERVAL_MS) return
    this.#warned = now
    this.#options.log.warn(
      { missing: this.missing, moving: this.moving },
      'more memory is needed than owners can move elsewhere',
    )
  }
}

/** What the client has answered, if only with nonsense; not that it has not answered in time, or that its connection broke. */
function isAnswer(failure: unknown): boolean {
  return !(failure instanceof VerbsError)
}

function byOwner(slabs: Iterable<readonly [number, SlabOwner]>): Map<SlabOwner, number[]> {
  const owners = new Map<SlabOwner, number[]>()
  for (const [id, owner] of slabs) owners.set(owner, [...(owners.get(owner) ?? []), id])
  return owners
}
