import type { Context } from '@rdmakit/verbs'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { FencedError } from '../servers/fenced-error.js'
import type { VolumeServer } from '../servers/volume-server.js'
import { LoopHold } from './loop-hold.js'
import type { RaisedOptions, ServerFailure } from './volume-options.js'

/** The state shared by the parts of a volume, and its listeners. */
export class VolumeState<Engine extends VolumeEngine = VolumeEngine> {
  readonly engine: Engine
  /** by index; only ServerIndexes changes it once the volume is open */
  readonly servers: VolumeServer[]
  /** the RDMA device that reaches the servers */
  readonly context: Context
  readonly options: RaisedOptions
  readonly progress: (step: string) => void
  /** there is a backup, and it has not failed */
  backedUp: boolean
  /** another process has taken the volume over */
  fenced: FencedError | undefined
  /** the sessions stay at the servers when this process ends */
  leaving = false
  /** what keeps the event loop alive; the sessions do not */
  readonly hold = new LoopHold()
  /** nothing that happens to a server concerns this process any more */
  over = false
  readonly onBackupFailure = new Set<(reason: string) => void>()
  readonly onFailure = new Set<(failure: ServerFailure) => void>()
  readonly onFenced = new Set<(failure: FencedError) => void>()

  constructor(engine: Engine, servers: VolumeServer[], context: Context, options: RaisedOptions) {
    this.engine = engine
    this.servers = servers
    this.context = context
    this.options = options
    this.progress = options.progress ?? (() => {})
    this.backedUp = options.backup !== undefined
    for (const warning of engine.backupWarnings) this.progress(`warning: ${warning}`)
  }

  get replicas(): number {
    return this.options.replicas ?? 1
  }
}
