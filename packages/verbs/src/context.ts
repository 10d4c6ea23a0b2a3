import { CompletionChannel } from './completion-channel.js'
import { CompletionQueue, type CompletionQueueOptions } from './completion-queue.js'
import { calling } from './errors.js'
import { type Handle, native, type ProviderName } from './native.js'
import { ProtectionDomain } from './protection-domain.js'
import { Resource } from './resource.js'

/** What a device can do beyond SEND, RECEIVE, RDMA WRITE and RDMA READ. */
export interface Capabilities {
  /** RDMA WRITE with 32 bits of immediate data; not on most iWARP devices */
  readonly writeWithImmediate: boolean
  readonly sendWithImmediate: boolean
  readonly atomics: boolean
}

/** An open device (ibv_context). One object per native context: comparing with `===` tells devices apart. */
export class Context extends Resource {
  static readonly #open = new Map<bigint, WeakRef<Context>>()

  readonly provider: ProviderName
  readonly deviceName: string
  readonly capabilities: Capabilities
  readonly #identity: bigint

  private constructor(handle: Handle) {
    super(handle, [])
    const info = native.contextInfo(handle)
    this.provider = info.provider
    this.deviceName = info.name
    this.#identity = info.identity
    this.capabilities = {
      writeWithImmediate: (info.capabilities & 1) !== 0,
      sendWithImmediate: (info.capabilities & 2) !== 0,
      atomics: (info.capabilities & 4) !== 0,
    }
  }

  /** The one Context of a native context handle. */
  static from(handle: Handle): Context {
    const known = Context.#open.get(native.contextInfo(handle).identity)?.deref()
    if (known !== undefined && !known.closed) return known
    const context = new Context(handle)
    Context.#open.set(context.#identity, new WeakRef(context))
    return context
  }

  get description(): string {
    return `device ${this.deviceName}`
  }

  /** ibv_query_device(3): limits under the names of `struct ibv_device_attr`. */
  queryDevice(): Record<string, number | bigint | string> {
    return calling(this.description, () => native.queryDevice(this.handle))
  }

  /** ibv_query_port(3): the fields of `struct ibv_port_attr`. @param port from 1 */
  queryPort(port = 1): Record<string, number> {
    return calling(`${this.description} port ${port}`, () => native.queryPort(this.handle, port))
  }

  /** ibv_alloc_pd(3) */
  allocateProtectionDomain(): ProtectionDomain {
    return new ProtectionDomain(this)
  }

  /** ibv_create_comp_channel(3) */
  createCompletionChannel(): CompletionChannel {
    return new CompletionChannel(this)
  }

  /** ibv_create_cq(3) */
  createCompletionQueue(options: CompletionQueueOptions): CompletionQueue {
    return new CompletionQueue(this, options)
  }

  override close(): void {
    Context.#open.delete(this.#identity)
    super.close()
  }
}
