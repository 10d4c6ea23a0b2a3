import {
  type LaneRequirements,
  VolumeEngine,
  type VolumeEvent,
  type VolumeEvents,
  type VolumeStatistics,
} from '@rdmakit/remote-volume'
import { type BlockEngineOptions, frontOptions } from './front-options.js'
import { type NativeFrontEvent, type NativeFrontStatistics, native } from './native.js'

export type EngineEvent = VolumeEvent | NativeFrontEvent
export type EngineStatistics = VolumeStatistics & NativeFrontStatistics

/** The events of an engine by their types. */
export type EngineEvents = VolumeEvents & {
  [Type in NativeFrontEvent['type']]: Extract<NativeFrontEvent, { type: Type }>
}

/**
 * A volume of remote memory served as a block device. It moves pages between NBD connections, or the queues of a ublk
 * device, and RDMA queue pairs in native threads (lanes); JavaScript sets it up and hears of failures, never of pages.
 */
export class BlockEngine extends VolumeEngine {
  /** NBD transmission flags of the export, as the kernel takes them in NBD_ATTR_SERVER_FLAGS */
  readonly exportFlags: number

  /** @throws EINVAL: an option out of range; ENOMEM or another errno: the page map cannot be had */
  constructor(options: BlockEngineOptions) {
    super(native, options, frontOptions(options))
    this.exportFlags = native.exportFlags(this.handle)
  }

  /** What to allocate for each lane. The same for every engine of this build. */
  static laneRequirements(): LaneRequirements {
    return native.laneRequirements()
  }

  /**
   * Takes the address of a Unix socket with mode 0600, a stale one's place too. Clients that connect wait for
   * {@link acceptClients}.
   * @throws EADDRINUSE: a live server listens there; EEXIST: the path is not a socket
   */
  bindUnix(path: string): void {
    native.bindUnix(this.handle, path)
  }

  /** The same of TCP. Port 0 takes a free one. @returns the bound address */
  bindTcp(host: string, port: number): { host: string; port: number } {
    return native.bindTcp(this.handle, host, port)
  }

  /** Accepts the clients of all addresses that are bound. */
  acceptClients(): void {
    native.acceptClients(this.handle)
  }

  /** Accepts NBD clients on a Unix socket. @throws as {@link bindUnix} */
  listenUnix(path: string): void {
    this.bindUnix(path)
    this.acceptClients()
  }

  /** Accepts NBD clients on TCP. @returns the bound address */
  listenTcp(host: string, port: number): { host: string; port: number } {
    const bound = this.bindTcp(host, port)
    this.acceptClients()
    return bound
  }

  /**
   * Starts `lane` on one end of a socketpair, in transmission phase, and gives the other end's file
   * descriptor for the kernel (or a client without handshake). The caller closes it.
   * @throws EBUSY: the lane serves another connection
   */
  attachSocketpair(lane: number): number {
    return native.attachSocketpair(this.handle, lane)
  }

  /**
   * Goes on with a connection in transmission phase that {@link yieldLane} ended elsewhere. The descriptor stays
   * the caller's.
   * @throws EBUSY: the lane serves another connection; EINVAL: it is no stream socket
   */
  attachSocket(lane: number, descriptor: number): void {
    native.attachSocket(this.handle, lane, descriptor)
  }

  /**
   * Starts each of `lanes` on a queue of a ublk device, or none. `descriptor`: its character device, which stays the
   * caller's. The kernel gets the disk once each of its queues has a lane.
   * @throws EBUSY: a lane serves another connection
   */
  attachDevice(lanes: readonly number[], descriptor: number): void {
    native.attachDevice(this.handle, [...lanes], descriptor)
  }

  /**
   * Lets a lane finish: it reads no further request, ends in the middle of none, and answers what it has. On a queue of
   * a device it rests then: until {@link resumeLane}, or {@link close}, after which the kernel gives the queue to whoever
   * recovers the device.
   * @returns the socket's descriptor, now the caller's, for {@link attachSocket} here or in another process;
   *   undefined when the lane served no connection, or a queue, or was told to resume
   */
  async yieldLane(lane: number): Promise<number | undefined> {
    let descriptor = -1
    const yielded = this.events.outcome(['laneYielded'], (event: EngineEvents['laneYielded']) => {
      if (event.lane !== lane) return false
      descriptor = event.descriptor
      return true
    })
    native.yieldLane(this.handle, lane)
    await yielded
    return descriptor < 0 ? undefined : descriptor
  }

  /** After {@link yieldLane}: a lane goes on with its queue, or with what it has not given away yet. */
  resumeLane(lane: number): void {
    native.resumeLane(this.handle, lane)
  }

  override statistics(): EngineStatistics {
    return native.statistics(this.handle)
  }

  override on<Type extends keyof EngineEvents>(
    type: Type,
    listener: (event: EngineEvents[Type]) => void,
  ): () => void {
    return this.events.on(type, listener)
  }
}
