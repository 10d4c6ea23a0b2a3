import { type NativeSafety, native } from '../engine/native.js'

export type Safety = NativeSafety

/** What this process asks of the kernel: see {@link NativeBinding}. */
export const {
  protectProcess,
  becomeIoFlusher,
  lockFile,
  descriptorChannel,
  sendDescriptors,
  receiveDescriptors,
  closeDescriptor,
  replaceProcess,
} = native

export interface KernelDeviceOptions {
  /** of /dev/nbdINDEX; default: the first free one */
  readonly index?: number | undefined
  readonly size: number | bigint
  /** bytes; default 4096 */
  readonly blockSize?: number | undefined
  /** seconds that the kernel waits for an answer before it retries on another connection; default 3 */
  readonly timeout?: number | undefined
  /** seconds that requests wait for a new connection when all are dead; default 3600; 0 fails them at once */
  readonly deadConnectionTimeout?: number | undefined
  /** BlockEngine.exportFlags */
  readonly serverFlags: number
  /** what a reconfigure must repeat to be let in; default none */
  readonly identifier?: string | undefined
  /** one descriptor from BlockEngine.attachSocketpair per connection */
  readonly sockets: readonly number[]
}

/** The kernel's block device driver (nbd.ko), over its generic netlink family. */
export const kernelDevice = {
  /**
   * Makes /dev/nbdINDEX. @returns the index
   * @throws ENOENT: the nbd module is not loaded; EPERM: not root; EBUSY: the device is in use
   */
  connect(options: KernelDeviceOptions): number {
    return native.kernelConnect(kernelOptions(options))
  },
  /** Gives an existing device new connections in place of its dead ones. */
  reconfigure(options: KernelDeviceOptions & { readonly index: number }): void {
    native.kernelReconfigure(kernelOptions(options))
  },
  disconnect(index: number): void {
    native.kernelDisconnect(index)
  },
  status(): readonly { readonly index: number; readonly connected: boolean }[] {
    return native.kernelStatus()
  },
}

function kernelOptions(options: KernelDeviceOptions) {
  return {
    index: options.index ?? -1,
    size: BigInt(options.size),
    blockSize: options.blockSize ?? 4096,
    timeout: options.timeout ?? 3,
    deadConnectionTimeout: options.deadConnectionTimeout ?? 3600,
    serverFlags: options.serverFlags,
    clientFlags: 0,
    identifier: options.identifier ?? '',
    sockets: [...options.sockets],
  }
}
