import { statSync } from 'node:fs'
import {
  ConfigurationError,
  NO_TAKE_OVER,
  nextTakeOver,
  type RemoteSlab,
  type SessionOptions,
  SwapServerError,
  type SwapServerSession,
} from '@rdmakit/swap-server'
import { type Context, openDevice } from '@rdmakit/verbs'
import { askAll, refusedBy } from './ask-sessions.js'
import { FencedError } from './fenced.js'
import type { KeptServer, KeptVolume } from './kept-volume.js'
import { endSession } from './resume-session.js'
import { placeOf, type SlabReplica, type SlabTable } from './slab-table.js'
import type { VolumeEngine } from './volume-engine.js'
import type { VolumeEngineOptions } from './volume-engine-options.js'
import { NothingLeftError, type VolumeOptions } from './volume-options.js'
import { freeIndex, VolumeServer } from './volume-server.js'

/** From one try of a server that does not answer to the next. */
const RETRY_MS = 1_000

const FAILED_BEFORE = 'it failed before the restart'

/** A server whose session this process has taken up, with the slabs that it found there. */
export interface ResumedServer {
  readonly kept: KeptServer
  readonly session: SwapServerSession
  readonly slabs: readonly RemoteSlab[]
}

/** A server that takes part no more, and why. */
export interface GoneServer {
  readonly kept: KeptServer
  readonly reason: string
}

export interface TakenSessions {
  readonly resumed: readonly ResumedServer[]
  readonly gone: readonly GoneServer[]
}

/**
 * Makes the engine of a volume that is to be taken over. An engine makes maps that it does not find, and pages that were
 * written would read as zeros by those.
 * @throws ConfigurationError: a map is not there, or not of this volume
 */
export function onMaps<Engine>(
  maps: Pick<VolumeEngineOptions, 'pageMap' | 'slabMap'> | undefined,
  make: () => Engine,
): Engine {
  for (const file of [maps?.pageMap, maps?.slabMap]) {
    if (file === undefined) continue
    if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0) continue
    throw new ConfigurationError(
      `${file} is missing or empty: nobody knows what the volume's pages are; detach its device, if it has one, and remove the folder's files`,
    )
  }
  try {
    return make()
  } catch (failure) {
    if ((failure as NodeJS.ErrnoException).code !== 'EINVAL') throw failure
    throw new ConfigurationError((failure as Error).message)
  }
}

/**
 * Takes up the sessions of the servers that have not failed, all at once, and of those that have failed and were waited
 * for. One that answers and does not know the session is gone. One that does not answer is gone too, unless `needed`
 * says that some slab is nowhere else: then it is called again for as long as its session lingers, for the kernel waits
 * longer than that. One that refuses for what waiting does not mend is gone too, unless some slab is nowhere else: then
 * nothing is given up, and the next process may have the right key.
 * @param backedUp whether the local backup alone will do for a slab
 * @throws FencedError: another process has the volume; ExitError: a server refuses what is needed; ConfigurationError
 */
export async function takeSessions(
  engine: VolumeEngine,
  kept: readonly KeptServer[],
  options: SessionOptions,
  backedUp: (slab: number) => boolean,
  progress: (step: string) => void,
): Promise<TakenSessions> {
  const failed = new Set(engine.failedServers())
  const resumed: ResumedServer[] = []
  const gone: GoneServer[] = []
  // A server that came back has its session under several indexes.
  const ofSession = ({ identity: { session } }: KeptServer) =>
    kept.filter(({ identity }) => identity.session === session).map(({ index }) => index)
  const alone = (server: KeptServer) => needed(engine, ofSession(server), NONE, backedUp, true)
  let waiting = incarnationsToResume(kept, failed, alone)
  for (const server of kept) if (!waiting.includes(server)) gone.push({ kept: server, reason: FAILED_BEFORE })
  const started = Date.now()
  let told: string | undefined
  try {
    for (;;) {
      const asked = await askAll(waiting, engine.slabSize, options)
      resumed.push(...asked.resumed)
      gone.push(...asked.ended)
      if (asked.failure !== undefined) throw asked.failure
      options.signal?.throwIfAborted()
      const live = new Set(resumed.map(({ kept: { index } }) => index))
      const isNeeded = ({ kept: server }: GoneServer) => needed(engine, ofSession(server), live, backedUp)
      const refusing = asked.forbidden.find(isNeeded)
      if (refusing !== undefined) throw refusedBy(refusing)
      const silent = asked.silent.filter((each) => Date.now() - started < each.kept.linger && isNeeded(each))
      gone.push(...asked.forbidden, ...asked.silent.filter((each) => !silent.includes(each)))
      if (silent.length === 0) return { resumed, gone }
      waiting = silent.map((each) => each.kept)
      const line = `waiting for ${silent.map(({ kept, reason }) => `${kept.uris.join(' or ')} (${reason})`).join(', ')}: nobody else has its slabs`
      if (line !== told) progress(line)
      told = line
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
    }
  } catch (failure) {
    await Promise.all(resumed.map(({ session }) => session.leave()))
    throw failure
  }
}

/**
 * Of each session the incarnation that is to go on with it: the last one that has not failed, or that was waited for. One
 * that failed while it joined had nothing of the volume, and is no reason to give up the one before it.
 * @param kept in the order in which they joined
 * @param alone whether some slab is at no other server than this one
 */
export function incarnationsToResume(
  kept: readonly KeptServer[],
  failed: ReadonlySet<number>,
  alone: (server: KeptServer) => boolean,
): KeptServer[] {
  const bySession = new Map<number, KeptServer>()
  for (const server of kept)
    if (!failed.has(server.index) || (server.away === true && alone(server)))
      bySession.set(server.identity.session, server)
  return kept.filter((server) => bySession.get(server.identity.session) === server)
}

/**
 * Gives back what a volume that nobody can use any more still has at its servers. What a client has there is not given
 * back: it is another process's, which goes on with it from a copy of the folder.
 */
export async function endKept(
  { servers, takeOver = NO_TAKE_OVER }: KeptVolume,
  options: SessionOptions,
  progress: (step: string) => void,
): Promise<void> {
  const unattended = { ...options, takeOver: nextTakeOver(takeOver), unattended: true }
  await Promise.all(
    servers.map(async ({ uris, identity }) => {
      try {
        await endSession(uris, identity, unattended)
      } catch (failure) {
        // Else it has ended, or ends when it has lingered.
        const another =
          failure instanceof FencedError || (failure instanceof SwapServerError && failure.code === 'EBUSY')
        if (another) progress(`${uris.join(' or ')} keeps what it had: ${failure.message}`)
      }
    }),
  )
}

/** Whether a slab can do without its servers: what was answered is in the file. */
export function backedUp(
  { backup, engine: given }: VolumeOptions,
  engine: VolumeEngine,
): (slab: number) => boolean {
  if (backup === undefined) return () => false
  // What is missing then are WRITEs that were never answered, and that the kernel repeats.
  if (given?.acknowledge === 'backup') return () => true
  return (slab) => engine.missingInBackup(slab) === 0
}

/** The device of a volume of which only the backup is left: servers that come back are reached through it. */
export function contextOf({ backup }: VolumeOptions, { context }: KeptVolume): Context {
  if (backup === undefined || context === undefined)
    throw new NothingLeftError('no server gave the session back: nothing of the volume is left')
  return openDevice(context.name, context.provider)
}

const NONE: ReadonlySet<number> = new Set()

/**
 * Some slab has a live replica at one of `servers`, none at the servers `live`, and is not backed up.
 * @param alone no other on record: who of several that failed has everything, only the process knew that saw it
 */
function needed(
  engine: VolumeEngine,
  servers: readonly number[],
  live: ReadonlySet<number>,
  backedUp: (slab: number) => boolean,
  alone = false,
): boolean {
  for (let slab = 0; slab < engine.slabCount; slab++) {
    const readable = (engine.lookUpSlab(slab) ?? []).filter(({ live, leaving }) => live || leaving)
    if (
      readable.some((replica) => servers.includes(replica.server)) &&
      (!alone || readable.length === 1) &&
      !readable.some((replica) => live.has(replica.server)) &&
      !backedUp(slab)
    )
      return true
  }
  return false
}

/** Servers that had failed take part under new indexes, as any that come back. @throws UsageError: there are none left */
export function renumber(engine: VolumeEngine, taken: TakenSessions): TakenSessions {
  const failed = new Set(engine.failedServers())
  const back = taken.resumed.filter(({ kept }) => failed.has(kept.index))
  if (back.length === 0) return taken
  const used = new Set([...failed, ...[...taken.resumed, ...taken.gone].map(({ kept }) => kept.index)])
  const next = () => {
    const index = freeIndex((each) => used.has(each))
    used.add(index)
    return index
  }
  return {
    resumed: taken.resumed.map((server) =>
      back.includes(server) ? { ...server, kept: { ...server.kept, index: next() } } : server,
    ),
    gone: [...taken.gone, ...back.map(({ kept }) => ({ kept, reason: FAILED_BEFORE }))],
  }
}

/**
 * Slabs of which the only replica is on record at a failed incarnation of a server that is back are at its new one. Once
 * volume.json names that one.
 */
export function moveToIncarnations(engine: VolumeEngine, { resumed, gone }: TakenSessions): void {
  for (const { kept } of resumed)
    for (const { kept: old } of gone) {
      if (old.away !== true || old.identity.session !== kept.identity.session) continue
      for (let slab = 0; slab < engine.slabCount; slab++) {
        const readable = (engine.lookUpSlab(slab) ?? []).filter(({ live, leaving }) => live || leaving)
        const [only] = readable
        if (readable.length === 1 && only?.server === old.index)
          engine.moveReplica(slab, old.index, { ...only, server: kept.index })
      }
    }
}

/** What became of the slabs: numbers of slabs. */
export interface Adopted {
  readonly degraded: number
  /** of which only the backup has a copy */
  readonly backedUp: number
  /** pages of these that it does not have: they were under way, or had found no room */
  readonly missing: number
  /** of which no copy is left */
  readonly lost: number
  /** by server index: slabs of its session that no record names */
  readonly orphans: ReadonlyMap<VolumeServer, readonly RemoteSlab[]>
}

/**
 * The volume's servers by index, those that are gone among them: made first, for they are the earlier incarnations.
 * @param failed of the engine: some may be of servers that volume.json names no more
 */
export function serversOf({ resumed, gone }: TakenSessions, failed: readonly number[] = []): VolumeServer[] {
  const all: VolumeServer[] = []
  // One array for the same addresses: by that a server that came back is known.
  const known = new Map<string, readonly string[]>()
  const same = (uris: readonly string[]) => {
    const key = uris.join(',')
    const first = known.get(key) ?? uris
    known.set(key, first)
    return first
  }
  for (const { kept, reason } of gone)
    all[kept.index] = VolumeServer.gone(kept.index, same(kept.uris), reason, kept.identity)
  for (const { kept, session } of resumed)
    all[kept.index] = new VolumeServer(kept.index, same(kept.uris), session)
  const count = Math.max(all.length, ...failed.map((index) => index + 1))
  for (let index = 0; index < count; index++) all[index] ??= VolumeServer.vacant(index)
  return all
}

/**
 * Fills the slab table from the slab map, as far as the servers confirm it: what they do not list, what was still being
 * filled and what is at a server that is gone is dropped.
 */
export function adoptSlabs(
  engine: VolumeEngine,
  table: SlabTable,
  servers: readonly VolumeServer[],
  taken: TakenSessions,
  thin: boolean,
): Adopted {
  const listed = new Map(
    taken.resumed.map(({ kept, slabs }) => [kept.index, new Map(slabs.map((slab) => [placeOf(slab), slab]))]),
  )
  let degraded = 0
  let lost = 0
  let backedUp = 0
  let missing = 0
  for (let slab = 0; slab < engine.slabCount; slab++) {
    const recorded = engine.lookUpSlab(slab)
    if (recorded === undefined && thin) continue // nothing was written there
    const ranked = (recorded ?? []).toSorted((a, b) => Number(b.live) - Number(a.live))
    const adopted: SlabReplica[] = []
    for (const replica of ranked) {
      const server = servers[replica.server]
      const there = listed.get(replica.server)
      const remote = there?.get(placeOf(replica))
      // One that was about to be dropped has everything, and counts where no other is left.
      const complete = replica.live || (replica.leaving && adopted.length === 0)
      if (server === undefined || remote === undefined || !complete) {
        engine.dropReplica(slab, replica.server, true)
        continue
      }
      there?.delete(placeOf(replica))
      server.slabs++
      adopted.push({ server, remote, live: true })
    }
    table.adopt(slab, adopted)
    const state = table.state(slab)
    if (state === 'lost') lost++
    else if (state === 'degraded') degraded++
    else if (state === 'backup') {
      backedUp++
      missing += engine.missingInBackup(slab)
    }
  }
  const orphans = new Map<VolumeServer, RemoteSlab[]>()
  for (const [index, rest] of listed) {
    const server = servers[index]
    if (server !== undefined && rest.size > 0) orphans.set(server, [...rest.values()])
  }
  return { degraded, backedUp, missing, lost, orphans }
}
