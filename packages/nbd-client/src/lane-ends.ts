import type { SwapServerSession } from '@rdmakit/swap-server'
import type {
  CompletionChannel,
  CompletionQueue,
  Context,
  MemoryRegion,
  ProtectionDomain,
  QueuePair,
} from '@rdmakit/verbs'
import { BlockEngine } from './engine.js'
import type { Lane, LaneResources } from './engine-lane.js'

/** The verbs objects of one lane, and the way to a server that joins later. */
export class LaneEnds {
  readonly #protectionDomain: ProtectionDomain
  readonly #channel: CompletionChannel
  readonly #completionQueue: CompletionQueue
  readonly #arena: MemoryRegion

  private constructor(context: Context, protectionDomain: ProtectionDomain, arena: MemoryRegion) {
    this.#protectionDomain = protectionDomain
    this.#arena = arena
    this.#channel = context.createCompletionChannel()
    this.#completionQueue = context.createCompletionQueue({
      entries: BlockEngine.laneRequirements().completionQueueEntries,
      channel: this.#channel,
      progress: 'manual',
    })
  }

  static async open(context: Context, protectionDomain: ProtectionDomain): Promise<LaneEnds> {
    const { arenaBytes } = BlockEngine.laneRequirements()
    const arena = await protectionDomain.allocateMemoryRegion(arenaBytes, ['local-write'])
    return new LaneEnds(context, protectionDomain, arena)
  }

  /** A queue pair to `session`'s server. @throws VerbsError */
  connect(session: SwapServerSession): Promise<QueuePair> {
    const needs = BlockEngine.laneRequirements()
    return session.connectData(this.#protectionDomain, {
      sendQueue: this.#completionQueue,
      maxSend: needs.sendQueueDepth,
      maxReceive: 1,
      maxInlineData: needs.maxInlineData,
    })
  }

  /** What the engine takes. `queuePairs`: by server index */
  resources(queuePairs: readonly (QueuePair | null)[]): LaneResources {
    return {
      completionQueue: this.#completionQueue,
      channel: this.#channel,
      queuePairs,
      memoryRegions: [this.#arena],
    }
  }
}

/** A lane that runs, with its ends. */
export interface RunningLane {
  readonly lane: Lane
  readonly ends: LaneEnds
  /** by server index */
  readonly queuePairs: (QueuePair | null)[]
}
