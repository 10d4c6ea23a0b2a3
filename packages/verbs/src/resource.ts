import { UsageError } from './errors.js'
import { type Handle, native } from './native.js'

/**
 * A verbs object with an owner. Closing it closes what was made from it first, children before
 * parents, as pyverbs does; closing twice is fine.
 */
export abstract class Resource {
  readonly #children = new Set<Resource>()
  readonly #parents: Resource[]
  #handle: Handle | undefined

  protected constructor(handle: Handle, parents: Resource[]) {
    this.#handle = handle
    this.#parents = parents
    for (const parent of parents) parent.#children.add(this)
  }

  /** @internal how asynchronous events name this object, if they do */
  readonly identity: bigint | undefined

  /** What errors call this object, e.g. `queue pair 17`. */
  abstract readonly description: string

  /**
   * The native handle, for another addon that works on this object (see `rdmakit/handle.h`).
   * @throws UsageError when the object is closed
   */
  get handle(): Handle {
    if (this.#handle === undefined) throw new UsageError(`${this.description} is closed`)
    return this.#handle
  }

  /** Whether {@link close} was called, here or on what this was made from. */
  get closed(): boolean {
    return this.#handle === undefined
  }

  /** Releases the object and all that was made from it. Native users keep what they hold until they let go. */
  close(): void {
    const handle = this.#handle
    if (handle === undefined) return
    // The last made goes first: it may rest on the earlier ones.
    for (const child of [...this.#children].reverse()) child.close()
    this.#handle = undefined
    for (const parent of this.#parents) parent.#children.delete(this)
    native.close(handle)
  }

  /** @internal what was made from this object, directly or not, and has this identity */
  protected descendant(identity: bigint): Resource | undefined {
    for (const child of this.#children) {
      const found = child.identity === identity ? child : child.descendant(identity)
      if (found !== undefined) return found
    }
    return undefined
  }

  /** @internal takes this object from one of its parents, if it has it as such, to another */
  protected adopt(from: Resource | undefined, to: Resource): void {
    const at = from === undefined ? -1 : this.#parents.indexOf(from)
    if (from !== undefined) from.#children.delete(this)
    to.#children.add(this)
    if (at < 0) this.#parents.push(to)
    else this.#parents[at] = to
  }

  /** {@link close}, for `using`. */
  [Symbol.dispose](): void {
    this.close()
  }
}
