import { type NativeSafety, native } from '../engine/native.js'

export type Safety = NativeSafety

/**
 * Prepares this process to serve swap: locks the memory that lanes use (all but V8's own heap, see
 * packages/remote-volume/native/system/swap_safety.h) and asks the OOM killer to spare it. Says of each protection whether it
 * was granted, and why not. Call it after the lanes are made, and again after more were added.
 */
export function protectProcess(): readonly Safety[] {
  return native.protectProcess()
}

/**
 * Marks this thread, those that it starts, and what {@link replaceProcess} executes as part of the I/O path
 * (PR_SET_IO_FLUSHER of prctl(2)): to get memory they never write to a device.
 * @returns true when it is only now: threads that were there before are not marked. False, too, where it is not permitted
 */
export function becomeIoFlusher(): boolean {
  return native.becomeIoFlusher()
}

/**
 * Locks a file, made if it is missing, until the descriptor is closed or the process ends.
 * @throws EBUSY: another process has it
 */
export function lockFile(path: string): number {
  return native.lockFile(path)
}

/** Both ends of a socket over which open files go from process to process. The caller closes them. */
export function descriptorChannel(): readonly [number, number] {
  return native.descriptorChannel()
}

/** Sends 1 to 253 descriptors to the receiver at the other end; they also stay the caller's. */
export function sendDescriptors(channel: number, descriptors: readonly number[]): void {
  native.sendDescriptors(channel, [...descriptors])
}

/**
 * Receives the descriptors of one call of {@link sendDescriptors}, now the caller's. @throws EAGAIN: there is nothing
 */
export function receiveDescriptors(channel: number): readonly number[] {
  return native.receiveDescriptors(channel)
}

/** Closes a descriptor that BlockEngine.attachSocketpair gave, once the kernel has it. */
export function closeDescriptor(descriptor: number): void {
  native.closeDescriptor(descriptor)
}

/**
 * Executes another program in this process, with its environment, control group, standard input, output and
 * error, and without its memory. No `exit` event comes first.
 * @param program found by PATH @param kept more descriptors that stay open @throws Error with the `code` of
 * execve(2), and this process continues
 */
export function replaceProcess(program: string, words: readonly string[], kept: readonly number[]): void {
  native.replaceProcess(program, [...words], [...kept])
}

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
