import type { NativeLaneRequirements, VerbsHandle } from './volume-addon.js'

/** Any resource of `@rdmakit/verbs`: what matters is the external that it carries. */
export interface VerbsResource {
  readonly handle: VerbsHandle
}

/** The memory and queue entries that JavaScript must allocate for one lane. */
export type LaneRequirements = NativeLaneRequirements

/** The verbs objects of one lane. Nothing else may use them while the engine lives. */
export interface LaneResources {
  /** made with `manual` progress or automatic, ≥ {@link LaneRequirements.completionQueueEntries} */
  readonly completionQueue: VerbsResource
  /** the queue's channel; may be missing in wait mode `poll` only */
  readonly channel?: VerbsResource
  /** by server index; null where this lane does not reach that server (yet) */
  readonly queuePairs: readonly (VerbsResource | null)[]
  /**
   * The arena: ≥ {@link LaneRequirements.arenaBytes} bytes, registered with local write access. One
   * region for all servers, or one per server index over the same memory when servers sit on
   * different devices.
   */
  readonly memoryRegions: readonly VerbsResource[]
}

export interface Lane {
  readonly index: number
  /** protections that could not be had, each a sentence to print */
  readonly warnings: readonly string[]
}

/** The handles that the addon takes. */
export function laneHandles({ completionQueue, channel, queuePairs, memoryRegions }: LaneResources) {
  return [
    completionQueue.handle,
    channel?.handle,
    queuePairs.map((queuePair) => queuePair?.handle),
    memoryRegions.map((region) => region.handle),
  ] as const
}
