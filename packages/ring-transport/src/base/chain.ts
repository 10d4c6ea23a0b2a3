/** A member of a {@link Chain}. Its fields belong to the chain while it is in one. */
export class ChainLink<T> {
  /** @internal */
  before: T | undefined
  /** @internal */
  behind: T | undefined
  /** @internal */
  linked = false
}

/**
 * A list in order of arrival, whose members can leave from any position, at once; the list allocates no
 * memory. A Set of few members makes a new table every few arrivals, and each old one leads to the next: once
 * one of them has grown old, all that follow live until V8 collects everything. A request paid several
 * microseconds for that.
 */
export class Chain<T extends ChainLink<T>> {
  #first: T | undefined
  #last: T | undefined
  #size = 0

  get size(): number {
    return this.#size
  }

  get first(): T | undefined {
    return this.#first
  }

  /** Takes one at the end that is in no chain. */
  add(member: T): void {
    member.linked = true
    member.before = this.#last
    if (this.#last === undefined) this.#first = member
    else this.#last.behind = member
    this.#last = member
    this.#size++
  }

  /** @returns false when it is in no chain */
  delete(member: T): boolean {
    if (!member.linked) return false
    const { before, behind } = member
    if (before === undefined) this.#first = behind
    else before.behind = behind
    if (behind === undefined) this.#last = before
    else behind.before = before
    member.linked = false
    member.before = undefined
    member.behind = undefined
    this.#size--
    return true
  }

  /** All of them, as they are now. */
  all(): T[] {
    const all: T[] = []
    for (let one = this.#first; one !== undefined; one = one.behind) all.push(one)
    return all
  }
}
