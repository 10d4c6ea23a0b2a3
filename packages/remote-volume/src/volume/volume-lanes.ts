import type { SwapServerSession } from '@rdmakit/swap-server'
import type { Context, MemoryOptions, ProtectionDomain, QueuePair } from '@rdmakit/verbs'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeServer } from '../servers/volume-server.js'
import { LaneConnector, type RunningLane } from './lane-connector.js'

/** A queue pair to a server that is joining, and the lane that gets it. */
export interface LaneConnection {
  readonly running: RunningLane
  readonly queuePair: QueuePair
}

/** The lanes of a volume, with what connects them to its servers. */
export class VolumeLanes {
  readonly running: RunningLane[] = []
  readonly #engine: VolumeEngine
  readonly #context: Context
  readonly #memory: MemoryOptions
  readonly #protectionDomain: ProtectionDomain
  /** also of lanes that do not run, because one could not be opened */
  readonly #connectors: LaneConnector[] = []

  /** @param memory of the lanes */
  constructor(engine: VolumeEngine, context: Context, memory: MemoryOptions) {
    this.#engine = engine
    this.#context = context
    this.#memory = memory
    this.#protectionDomain = context.allocateProtectionDomain()
  }

  /**
   * Opens `count` lanes that serve, and connects them to the servers.
   * @param refills one more copies slabs
   */
  async open(servers: readonly VolumeServer[], count: number, refills: boolean): Promise<void> {
    // At once: round trips to servers are what a client waits for when the volume is taken over.
    const opening = Array.from({ length: count + (refills ? 1 : 0) }, () => this.#openLane(servers))
    // Nothing of them may go on when one fails.
    await Promise.allSettled(opening)
    for (const [index, { connector, queuePairs }] of (await Promise.all(opening)).entries()) {
      const resources = connector.resources(queuePairs)
      const lane = index < count ? this.#engine.addLane(resources) : this.#engine.addRefillLane(resources)
      this.running.push({ lane, connector, queuePairs })
    }
  }

  /** Connects all lanes to a server that is joining. No lane knows it yet: {@link give}. */
  async connect(session: SwapServerSession): Promise<readonly LaneConnection[]> {
    const connecting = this.running.map(async (running) => ({
      running,
      queuePair: await running.connector.connect(session),
    }))
    await Promise.allSettled(connecting)
    return await Promise.all(connecting)
  }

  /** Lets all lanes know that server. */
  give(connections: readonly LaneConnection[], index: number): void {
    for (const { running, queuePair } of connections) {
      this.#engine.connectServer(running.lane.index, index, queuePair)
      running.queuePairs[index] = queuePair
    }
  }

  /** The engine must be closed. */
  close(): void {
    this.#protectionDomain.close()
    for (const connector of this.#connectors) connector.close()
  }

  /** One lane's verbs objects; queue pairs by server index. */
  async #openLane(
    servers: readonly VolumeServer[],
  ): Promise<{ connector: LaneConnector; queuePairs: (QueuePair | null)[] }> {
    const needs = this.#engine.laneRequirements
    const connector = await LaneConnector.open(this.#context, this.#protectionDomain, needs, this.#memory)
    this.#connectors.push(connector)
    const connecting = servers.map(async (server) =>
      server.failure === undefined ? await connector.connect(server.session) : null,
    )
    await Promise.allSettled(connecting)
    return { connector, queuePairs: await Promise.all(connecting) }
  }
}
