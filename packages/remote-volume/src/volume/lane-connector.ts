import type { SwapServerSession } from '@rdmakit/swap-server'
import type {
  CompletionChannel,
  CompletionQueue,
  Context,
  MemoryOptions,
  MemoryRegion,
  ProtectionDomain,
  QueuePair,
} from '@rdmakit/verbs'
import type { Lane, LaneRequirements, LaneResources } from '../engine/lane.js'

/** The verbs objects of one lane, which connect it to the servers, also to one that joins later. */
export class LaneConnector {
  readonly #protectionDomain: ProtectionDomain
  readonly #channel: CompletionChannel
  readonly #completionQueue: CompletionQueue
  readonly #arena: MemoryRegion
  readonly #needs: LaneRequirements

  private constructor(
    context: Context,
    protectionDomain: ProtectionDomain,
    needs: LaneRequirements,
    arena: MemoryRegion,
  ) {
    this.#needs = needs
    this.#protectionDomain = protectionDomain
    this.#arena = arena
    this.#channel = context.createCompletionChannel()
    try {
      this.#completionQueue = context.createCompletionQueue({
        entries: needs.completionQueueEntries,
        channel: this.#channel,
        progress: 'manual',
      })
    } catch (failure) {
      this.#channel.close()
      throw failure
    }
  }

  static async open(
    context: Context,
    protectionDomain: ProtectionDomain,
    needs: LaneRequirements,
    memory: MemoryOptions = {},
  ): Promise<LaneConnector> {
    const arena = await protectionDomain.allocateMemoryRegion(needs.arenaBytes, ['local-write'], memory)
    return new LaneConnector(context, protectionDomain, needs, arena)
  }

  /** A queue pair to `session`'s server. @throws VerbsError */
  connect(session: SwapServerSession): Promise<QueuePair> {
    const needs = this.#needs
    return session.connectData(this.#protectionDomain, {
      sendQueue: this.#completionQueue,
      maxSend: needs.sendQueueDepth,
      maxReceive: 1,
      maxInlineData: needs.maxInlineData,
    })
  }

  /** The resources of the engine. `queuePairs`: by server index */
  resources(queuePairs: readonly (QueuePair | null)[]): LaneResources {
    return {
      completionQueue: this.#completionQueue,
      channel: this.#channel,
      queuePairs,
      memoryRegions: [this.#arena],
    }
  }

  /** The protection domain, which has the rest, must be closed. */
  close(): void {
    // Its queue is made from it.
    this.#channel.close()
  }
}

/** A lane that runs, with what connects it. */
export interface RunningLane {
  readonly lane: Lane
  readonly connector: LaneConnector
  /** by server index */
  readonly queuePairs: (QueuePair | null)[]
}
