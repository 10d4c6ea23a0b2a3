import { type Handle, native } from '../native.js'
import { UsageError } from './errors.js'

/**
 * A verbs object with an owner. Closing it first closes the objects created from it, children before parents, as pyverbs
 * does; closing twice is fine.
 */
export abstract class Resource {
  readonly #children = new Set<Resource>()
  readonly #parents: Resource[]
  readonly #handle: Handle
  #closed = false

  protected constructor(handle: Handle, parents: Resource[]) {
    this.#handle = handle
    this.#parents = parents
    for (const parent of parents) parent.#children.add(this)
  }

  /** @internal how asynchronous events name this object, if they do */
  readonly identity: bigint | undefined

  /** The name of this object in errors, e.g. `queue pair 17`. */
  abstract readonly description: string

  /**
   * The native handle, for another addon that works on this object (see `rdmakit/handle.h`).
   * @throws UsageError when the object is closed
   */
  get handle(): Handle {
    if (this.#closed) throw new UsageError(`${this.description} is closed`)
    return this.#handle
  }

  /** Whether {@link close} was called on this object or on a parent. */
  get closed(): boolean {
    return this.#closed
  }

  /**
   * Whether the object is gone: {@link close} was called, native users have released it, and the device has destroyed it.
   * {@link close} usually waits for the device. But a queue pair whose packets the network does not accept may keep
   * Soft-RoCE busy for 50 s; then `close` returns after 0.1 s, and this is false until the device is done. Over shm the
   * same happens while a peer is stopped in the middle of a copy, until it has finished or is dead; and with the last of
   * hundreds that are closed at once, for which `close` waits no longer than for one. As long as this is false, requests
   * that the peer of a queue pair, or of its connection id, has posted may still land here.
   */
  get destroyed(): boolean {
    return native.destroyed(this.#handle)
  }

  /** Releases the object and all objects created from it. Native users keep theirs until they release them. */
  close(): void {
    if (this.#leave()) native.close(this.#handle)
  }

  /** @internal {@link close}, which waits for the device on another thread */
  protected async closeElsewhere(): Promise<void> {
    if (this.#leave()) await native.closeAsync(this.#handle)
  }

  /** @returns false when it was closed before */
  #leave(): boolean {
    if (this.#closed) return false
    // The last made goes first: it may rest on the earlier ones.
    for (const child of [...this.#children].reverse()) child.close()
    this.#closed = true
    for (const parent of this.#parents) parent.#children.delete(this)
    return true
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
