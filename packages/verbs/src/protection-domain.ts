import type { Context } from './context.js'
import { calling, named, UsageError } from './errors.js'
import { type Access, accessBits, MemoryRegion } from './memory-region.js'
import { native } from './native.js'
import { Resource } from './resource.js'

/** Groups memory regions and queue pairs that may work together (ibv_pd). */
export class ProtectionDomain extends Resource {
  readonly context: Context

  /** @internal made by {@link Context.allocateProtectionDomain} */
  constructor(context: Context) {
    super(
      calling(context.description, () => native.allocPd(context.handle)),
      [context],
    )
    this.context = context
  }

  get description(): string {
    return `protection domain of ${this.context.description}`
  }

  /**
   * Maps fresh zeroed memory, touches it and registers it (ibv_reg_mr(3)). Runs off the JavaScript
   * thread: pinning a gigabyte takes a while.
   * @param length bytes, 1 … 2^40; rounded up to whole pages
   * @param access what the local device and remote peers may do; reading locally is always allowed
   * @throws VerbsError ENOMEM: not enough memory, or a locked-memory limit (`ulimit -l`)
   */
  async allocateMemoryRegion(length: number, access: Access[] = ['local-write']): Promise<MemoryRegion> {
    if (!Number.isSafeInteger(length) || length < 1 || length > 2 ** 40)
      throw new UsageError(`memory region length must be an integer from 1 to 2^40, not ${length}`)
    try {
      return new MemoryRegion(this, await native.allocMr(this.handle, length, accessBits(access)))
    } catch (failure) {
      throw named(this.description, failure)
    }
  }
}
