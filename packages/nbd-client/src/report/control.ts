import {
  type ControlRoutes,
  ControlSocket,
  type Impairment,
  runningPrograms,
  type SilentProgram,
} from '@rdmakit/operator-kit'
import type { SlabState } from '@rdmakit/remote-volume'
import type { EngineStatistics } from '../engine/block-engine.js'

/** What a running nbd-client tells of itself. */
export interface ClientStatus {
  readonly pid: number
  readonly mode: 'serve' | 'attach'
  /** `/dev/nbd0`, or the export's URI */
  readonly target: string
  /** of attach: what tells the device from others that have its number before or after */
  readonly identifier?: string
  /** bytes */
  readonly size: number
  readonly swap: boolean
  /** folder from which the next process goes on with the volume; undefined: it ends with this one */
  readonly state?: string
  readonly uptimeSeconds: number
  /** control code has failed, and pages are served as before, for no other process could go on with them */
  readonly impaired?: Impairment
  /** wanted of each slab */
  readonly replicas: number
  /** slabs in each state */
  readonly slabs: Readonly<Record<SlabState, number>>
  /** of a thin volume: slabs that have no memory, places ready for them, and slabs that gave theirs back */
  readonly thin?: { readonly unmapped: number; readonly spares: number; readonly given: number }
  readonly servers: readonly {
    /** of this incarnation, in `statistics.servers` */
    index: number
    uri: string
    /** that the volume has there */
    slabs: number
    /** of more, allocated ahead of use */
    spares: number
    /** `away`: pages are nowhere else, and requests for them wait for it */
    state: 'up' | 'away' | 'failed'
    reason?: string
  }[]
  /** slabs that servers want back: still there, and gone elsewhere since the start */
  readonly migration: { readonly waiting: number; readonly moved: number }
  readonly statistics: EngineStatistics
}

const PROGRAM = 'nbd-client'
/** Longer than all that the two processes wait for each other. */
const UPGRADE_TIMEOUT_MS = 240_000

/** The control socket of this process: status for `nbd-client status`, a stop for `nbd-client detach`. */
export function openControlSocket(
  status: () => ClientStatus,
  stop: (force: boolean) => void,
  more: ControlRoutes = {},
): Promise<ControlSocket> {
  return ControlSocket.open(PROGRAM, {
    'GET /status': status,
    'POST /stop': (body) => {
      stop((body as { force?: unknown } | undefined)?.force === true)
      return undefined
    },
    ...more,
  })
}

/** The outcome of an upgrade. */
export interface Upgraded {
  /** of the process that goes on */
  readonly pid: number
  /** milliseconds in which no process answered requests */
  readonly pause: number
}

/** A running client as found by its control socket. */
export interface RunningClient {
  /** Its number in its own PID namespace. */
  readonly pid: number
  /** It runs in another one: the number means nothing here. */
  readonly elsewhere: boolean
  readonly status: ClientStatus
  /** Whether it still does. */
  answers(): Promise<boolean>
  /** Asks it to stop, `force`: whoever uses its device. Resolves once it has taken the request; it ends later. */
  stop(force?: boolean): Promise<void>
  /** Lets another process go on with its device. @throws Error: it did not come to that, and why */
  upgrade(command?: readonly string[]): Promise<Upgraded>
}

/**
 * All running clients of this user. Sockets of which nobody is the owner are removed.
 *
 * @param silent told of each that does not answer; default: stderr is
 */
export async function runningClients(silent?: (program: SilentProgram) => void): Promise<RunningClient[]> {
  const programs = await runningPrograms(PROGRAM, silent)
  return programs.map(({ pid, elsewhere, status, call }) => ({
    pid,
    elsewhere,
    status: status as ClientStatus,
    answers: () =>
      call('GET', '/status').then(
        () => true,
        () => false,
      ),
    stop: async (force = false) => void (await call('POST', '/stop', { force })),
    upgrade: async (command) =>
      (await call('POST', '/upgrade', { ...(command && { command }) }, UPGRADE_TIMEOUT_MS)) as Upgraded,
  }))
}

/**
 * The client that has the device of this name in the kernel, and not one that had it before.
 * @param identifier of what the kernel has there
 */
export function ownerAmong(
  clients: readonly RunningClient[],
  path: string,
  identifier: string,
): RunningClient | undefined {
  return clients.find(
    ({ status }) =>
      status.mode === 'attach' &&
      status.target === path &&
      // One of an older version does not say.
      (status.identifier === undefined || status.identifier === identifier),
  )
}
