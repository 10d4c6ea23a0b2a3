import type { SwapServerSession } from '@rdmakit/swap-server'
import type { VolumeEngine } from '../engine/volume-engine.js'
import { freeIndex, VolumeServer } from '../servers/volume-server.js'
import type { SlabTable } from '../slabs/slab-table.js'
import type { RunningLane } from './lane-connector.js'

export interface ServerIndexesOptions {
  readonly engine: VolumeEngine
  readonly table: SlabTable
  /** by index; it is changed here only, once the volume is open */
  readonly servers: VolumeServer[]
  readonly lanes: readonly RunningLane[]
  /** as VolumeOptions.keep */
  readonly keep: (servers: readonly VolumeServer[]) => void
  readonly failed: (reason: string) => void
}

/**
 * Which server has which index. Each incarnation of a server takes one that is free, and it is free again when nothing
 * names that incarnation: no slab, no operation of a lane, no file, no list of failures
 * (docs/page-service/reconnect.md, "Indexes").
 */
export class ServerIndexes {
  readonly #options: ServerIndexesOptions
  #releasing: Promise<void> = Promise.resolve()
  #closed = false

  constructor(options: ServerIndexesOptions) {
    this.#options = options
  }

  /** For a server that is joining: nothing is placed there yet. @throws UsageError: none is free */
  take(uris: readonly string[], session: SwapServerSession): VolumeServer {
    const { engine, servers, keep } = this.#options
    const failed = engine.failedServers()
    const index = freeIndex((each) => servers[each]?.isVacant === false || failed.includes(each))
    const server = new VolumeServer(index, uris, session)
    server.failure = 'it is joining'
    server.joining = 'now'
    keep([...servers.slice(0, index), server, ...servers.slice(index + 1)])
    servers[index] = server
    return server
  }

  /** It could not join. */
  giveUp(server: VolumeServer, reason: string): void {
    server.failure = reason
    server.joining = 'failed'
    this.#options.engine.failServer(server.index, reason)
    this.release()
  }

  /**
   * Indexes of incarnations that are over are free soon, with all that lanes have of them. One that cannot be had now, for
   * a lane just looks at a spare place, say, is had when the next server joins.
   */
  release(): void {
    this.#releasing = this.#releasing.then(async () => {
      // The engine releases one at a time: one that was begun and could not be ended comes first.
      const over = this.#options.servers
        .filter((each) => this.#isOver(each))
        .sort((one, other) => Number(other.isVacant) - Number(one.isVacant))
      for (const server of over)
        await this.#release(server).catch(({ code, message }: NodeJS.ErrnoException) => {
          if (!this.#closed && code !== 'EBUSY')
            this.#options.failed(`the index of a lost server stays in use: ${message}`)
        })
    })
  }

  /** Resolves when nothing is released any more. The engine must be closed. */
  async close(): Promise<void> {
    this.#closed = true
    await this.#releasing
  }

  /** It has failed, no slab is there, and it will not come back as this one. */
  #isOver(server: VolumeServer): boolean {
    const { engine, table, servers } = this.#options
    if (server.isVacant) return engine.failedServers().includes(server.index)
    if (server.failure === undefined || server.joining === 'now' || server.away) return false
    const followed = server.joining === 'failed' || servers.some((other) => server.isBefore(other))
    return followed && table.heldBy(server).size === 0
  }

  async #release({ index, isVacant }: VolumeServer): Promise<void> {
    const { engine, servers, lanes, keep } = this.#options
    if (this.#closed) return
    if (!isVacant) {
      const vacant = VolumeServer.vacant(index)
      // No file names it when the engine forgets that it has failed.
      keep(servers.map((each) => (each.index === index ? vacant : each)))
      servers[index] = vacant
    }
    await engine.releaseServer(index)
    for (const { queuePairs } of lanes) {
      queuePairs[index]?.close()
      queuePairs[index] = null
    }
  }
}
