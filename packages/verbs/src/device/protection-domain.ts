import { integerInRange, registrable } from '../base/arguments.js'
import { calling, named, UsageError } from '../base/errors.js'
import { Resource } from '../base/resource.js'
import {
  type Access,
  accessBits,
  type MemoryOptions,
  MemoryRegion,
  nativeMemoryOptions,
} from '../memory/memory-region.js'
import { MemoryWindow } from '../memory/memory-window.js'
import { type Handle, native } from '../native.js'
import { AddressHandle, type AddressVector } from '../queue-pair/address-vector.js'
import { QueuePair, type UnconnectedQueuePairOptions } from '../queue-pair/queue-pair.js'
import { SharedReceiveQueue, type SharedReceiveQueueOptions } from '../queue-pair/shared-receive-queue.js'
import type { Context } from './context.js'

/** Groups memory regions and queue pairs that may work together (ibv_pd). */
export class ProtectionDomain extends Resource {
  /** the device */
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
   * @param access what the local device and remote peers may do, default `local-write`: peers may do nothing, and the
   *   device may receive and READ into it. Reading locally is always allowed
   * @throws VerbsError ENOMEM: not enough memory, or a locked-memory limit (`ulimit -l`)
   */
  async allocateMemoryRegion(
    length: number,
    access: readonly Access[] = ['local-write'],
    options: MemoryOptions = {},
  ): Promise<MemoryRegion> {
    if (!Number.isSafeInteger(length) || length < 1 || length > 2 ** 40)
      throw new UsageError(`memory region length must be an integer from 1 to 2^40, not ${length}`)
    const bits = accessBits(access)
    const mapping = nativeMemoryOptions(options)
    return await this.#region(() => native.allocMr(this.handle, length, bits, mapping))
  }

  /**
   * Registers a caller's own memory (ibv_reg_mr(3)). It is kept alive until the region is closed; it must
   * not be transferred (`postMessage`, `structuredClone`) or resized meanwhile, which would move the bytes
   * away from what the device was told. Over `shm` peers reach it by process_vm_readv(2), which is slower.
   * @param memory an ArrayBuffer, or a view of the part to register
   * @param access as {@link allocateMemoryRegion} has it, default `local-write`
   * @throws UsageError: no bytes, a SharedArrayBuffer, or a resizable one
   */
  registerMemoryRegion(
    memory: ArrayBuffer | ArrayBufferView<ArrayBuffer>,
    access: readonly Access[] = ['local-write'],
  ): MemoryRegion {
    const { buffer, byteOffset, byteLength } = someBytes(memory)
    const bits = accessBits(access)
    const handle = calling(this.description, () =>
      native.regMr(this.handle, buffer, byteOffset, byteLength, bits),
    )
    return new MemoryRegion(this, handle, { buffer, bits })
  }

  /**
   * {@link registerMemoryRegion}, off the JavaScript thread: pinning a gigabyte takes a while.
   * @throws as that; UsageError when the domain was closed meanwhile
   */
  async registerMemoryRegionAsync(
    memory: ArrayBuffer | ArrayBufferView<ArrayBuffer>,
    access: readonly Access[] = ['local-write'],
  ): Promise<MemoryRegion> {
    const { buffer, byteOffset, byteLength } = someBytes(memory)
    const bits = accessBits(access)
    const make = () => native.regMrAsync(this.handle, buffer, byteOffset, byteLength, bits)
    return await this.#region(make, { buffer, bits })
  }

  async #region(
    make: () => Promise<Handle>,
    registered?: { readonly buffer: ArrayBufferLike; readonly bits: number },
  ): Promise<MemoryRegion> {
    let handle: Handle
    try {
      handle = await make()
    } catch (failure) {
      throw named(this.description, failure)
    }
    if (this.closed) {
      await native.closeAsync(handle)
      throw new UsageError(`${this.description} was closed meanwhile`)
    }
    return new MemoryRegion(this, handle, registered)
  }

  /**
   * Registers memory of another device, a GPU's for instance (ibv_reg_dmabuf_mr(3)). It has no ArrayBuffer, and
   * cannot be sent from inline.
   * @param fd of the DMA buffer; may be closed afterwards
   * @throws VerbsError EOPNOTSUPP: the device cannot (`capabilities.dmaBuffer`)
   */
  registerDmaBuffer(
    { fd, offset = 0, length }: { readonly fd: number; readonly offset?: number; readonly length: number },
    access: readonly Access[] = ['local-write'],
  ): MemoryRegion {
    integerInRange('a file descriptor', fd, 0, 2 ** 31 - 1)
    integerInRange('an offset', offset, 0, Number.MAX_SAFE_INTEGER)
    integerInRange('a length', length, 1, Number.MAX_SAFE_INTEGER)
    const handle = calling(this.description, () =>
      native.regDmabufMr(this.handle, fd, offset, length, accessBits(access)),
    )
    return new MemoryRegion(this, handle)
  }

  /** ibv_alloc_mw(3), type 2. @throws VerbsError EOPNOTSUPP without `capabilities.memoryWindow` */
  allocateMemoryWindow(): MemoryWindow {
    return new MemoryWindow(this)
  }

  /** ibv_create_srq(3). @throws VerbsError EOPNOTSUPP without `capabilities.sharedReceiveQueue` */
  createSharedReceiveQueue(options: SharedReceiveQueueOptions = {}): SharedReceiveQueue {
    return new SharedReceiveQueue(this, options)
  }

  /**
   * A queue pair that no connection id drives (ibv_create_qp(3)), in state `reset`: for datagrams, and for
   * programs that exchange addresses by themselves. {@link ConnectionId.createQueuePair} is the usual way.
   * @throws VerbsError EOPNOTSUPP: a type that the device does not have
   */
  createQueuePair(options: UnconnectedQueuePairOptions): QueuePair {
    return new QueuePair(undefined, this, options)
  }

  /** ibv_create_ah(3). @throws VerbsError EOPNOTSUPP without `capabilities.datagram` */
  createAddressHandle(vector: AddressVector): AddressHandle {
    return new AddressHandle(this, vector)
  }
}

/** @throws UsageError for what cannot be registered */
function someBytes(memory: ArrayBuffer | ArrayBufferView<ArrayBuffer>): ArrayBufferView<ArrayBuffer> {
  const view = registrable(memory)
  if (view.byteLength === 0) throw new UsageError('memory of no bytes cannot be registered')
  return view
}
