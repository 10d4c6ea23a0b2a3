import type { Observable } from 'rxjs'
import { Subject } from 'rxjs/internal/Subject'
import { calling } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import { CompletionChannel } from '../completion/completion-channel.js'
import { CompletionQueue, type CompletionQueueOptions } from '../completion/completion-queue.js'
import { type Handle, native, type ProviderName } from '../native.js'
import { type AsyncEvent, asyncEventsOf } from './async-event.js'
import { ProtectionDomain } from './protection-domain.js'

/** The bits of `kCapability…` in `rdmakit/handle.h`. */
const CAPABILITIES = {
  writeWithImmediate: 1 << 0,
  sendWithImmediate: 1 << 1,
  atomics: 1 << 2,
  sharedReceiveQueue: 1 << 3,
  memoryWindow: 1 << 4,
  datagram: 1 << 5,
  multicast: 1 << 6,
  timestamps: 1 << 7,
  resize: 1 << 8,
  reregister: 1 << 9,
  dmaBuffer: 1 << 10,
} as const

/** What a device can do beyond SEND, RECEIVE, RDMA WRITE and RDMA READ. */
export interface Capabilities {
  /** RDMA WRITE with 32 bits of immediate data; not on most iWARP devices */
  readonly writeWithImmediate: boolean
  /** SEND with 32 bits of immediate data */
  readonly sendWithImmediate: boolean
  /** 64-bit compare-and-swap and fetch-and-add */
  readonly atomics: boolean
  /** receives that many queue pairs take from */
  readonly sharedReceiveQueue: boolean
  /** windows of type 2, with `send-with-invalidate` and `local-invalidate` */
  readonly memoryWindow: boolean
  /** queue pairs of type `ud` and `uc`, address handles, explicit states */
  readonly datagram: boolean
  /** datagrams to groups */
  readonly multicast: boolean
  /** completion queues with timestamps */
  readonly timestamps: boolean
  /** completion queues that can be resized */
  readonly resize: boolean
  /** memory regions whose rights and domain can change */
  readonly reregister: boolean
  /** memory regions over DMA buffers of other devices */
  readonly dmaBuffer: boolean
}

/** An entry of a port's table of global identifiers. */
export interface Gid {
  /** place in the table, as address vectors name it */
  readonly index: number
  /** 16 bytes */
  readonly gid: Uint8Array
  /** `IB`, `RoCE v1`, `RoCE v2` or `iWARP` */
  readonly type: string
  /** of the network interface, 0 when it has none */
  readonly interfaceIndex: number
}

/** An open device (ibv_context). One object per native context: comparing with `===` tells devices apart. */
export class Context extends Resource {
  static readonly #open = new Map<bigint, WeakRef<Context>>()

  /** who made the device */
  readonly provider: ProviderName
  /** as {@link listDevices} lists it */
  readonly deviceName: string
  /** what the device can do beyond the basics */
  readonly capabilities: Capabilities
  /**
   * Events of the device outside of work requests (ibv_get_async_event(3)): overrun completion queues, limits of shared
   * receive queues, port changes. Hot: events without a subscriber are lost. A subscriber is called in the context
   * (AsyncLocalStorage) in which it has subscribed.
   */
  readonly asyncEvents: Observable<AsyncEvent>
  readonly #identity: bigint
  readonly #end = new Subject<void>()

  private constructor(handle: Handle) {
    super(handle, [])
    const info = native.contextInfo(handle)
    this.provider = info.provider
    this.deviceName = info.name
    this.#identity = info.identity
    this.capabilities = Object.fromEntries(
      Object.entries(CAPABILITIES).map(([name, bit]) => [name, (info.capabilities & bit) !== 0]),
    ) as Record<keyof Capabilities, boolean>
    this.asyncEvents = asyncEventsOf(this, (identity) => this.descendant(identity), this.#end)
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

  /** The valid entries of the port's GID table (ibv_query_gid_table(3)). @param port from 1 */
  queryGids(port = 1): Gid[] {
    return calling(`${this.description} port ${port}`, () => native.queryGids(this.handle, port))
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
    // Another may be open by now, of the same device.
    if (Context.#open.get(this.#identity)?.deref() === this) Context.#open.delete(this.#identity)
    super.close()
    this.#end.next()
  }
}
