import type { VolumeEngine } from '../engine/volume-engine.js'
import type { FencedError } from '../servers/fenced-error.js'
import { ServerMembership } from './server-membership.js'
import { SlabWork } from './slab-work.js'
import { VolumeLanes } from './volume-lanes.js'
import { VolumeState } from './volume-state.js'

/** The parts of a volume. */
export class VolumeParts<Engine extends VolumeEngine = VolumeEngine> {
  readonly state: VolumeState<Engine>
  readonly lanes: VolumeLanes
  readonly slabs: SlabWork
  readonly members: ServerMembership
  #quiescing = false

  constructor(
    engine: Engine,
    servers: VolumeState['servers'],
    context: VolumeState['context'],
    options: VolumeState['options'],
  ) {
    const state = new VolumeState(engine, servers, context, options)
    this.state = state
    this.lanes = new VolumeLanes(state.engine, state.context, { populated: options.populated ?? true })
    this.slabs = new SlabWork(state, () => this.members.waitsForMemory())
    this.members = new ServerMembership(state, this.slabs, this.lanes, (failure) => this.fence(failure))
  }

  /** From now on the volume keeps the event loop alive, instead of its sessions. */
  holdLoop(): void {
    for (const server of this.state.servers) if (server.reached) server.session.unref()
    this.state.hold.begin()
  }

  async openLanes(): Promise<void> {
    const { servers, options, backedUp } = this.state
    await this.lanes.open(servers, options.lanes, servers.length > 1 || backedUp)
  }

  start(): void {
    const { engine } = this.state
    engine.on('backupFailed', ({ reason }) => this.#loseBackup(reason))
    const { backup } = engine.statistics()
    this.members.start()
    if (backup?.working === false) this.#loseBackup('it failed at the start')
    this.slabs.wake()
  }

  /** Stops control: from now on the other process's maps are the valid ones. */
  fence(failure: FencedError): void {
    const { state } = this
    if (state.over) return
    state.fenced = failure
    state.leaving = true
    state.over = true
    for (const end of [this.members.endCalls(), this.slabs.close(), this.members.endIndexes()])
      void end.catch(() => {})
    for (const listener of state.onFenced) listener(failure)
  }

  /** Nothing moves any more. */
  async quiesce(timeout: number): Promise<void> {
    const { engine, servers, onFailure, onFenced, onBackupFailure } = this.state
    for (const listeners of [onFailure, onFenced, onBackupFailure]) listeners.clear()
    this.state.over = true
    this.#quiescing = true
    const called = this.members.endCalls()
    try {
      await engine.close(timeout)
    } finally {
      const ended = Promise.all([this.slabs.close(), called])
      // Whoever goes on with the volume waits for this, and users of it for that one.
      for (const server of servers) server.endAllocation()
      await ended
      await this.members.endIndexes()
    }
  }

  #loseBackup(reason: string): void {
    if (this.#quiescing) return
    this.state.backedUp = false
    for (const listener of this.state.onBackupFailure) listener(reason)
    this.slabs.repair.wake()
  }
}
