import type { SessionOptions } from '@rdmakit/swap-server'
import type { VolumeEngine } from '../engine/volume-engine.js'
import type { VolumeOptions } from '../volume/volume-options.js'
import { askAll, type GoneServer, type ResumedServer, refusedBy, type TakenSessions } from './ask-sessions.js'
import type { KeptServer } from './kept-volume.js'

/** From one try of a server that does not answer to the next. */
const RETRY_MS = 1_000

/** Why one is gone. */
export const FAILED_BEFORE = 'it failed before the restart'

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
  const started = performance.now()
  let told: string | undefined
  try {
    for (;;) {
      const asked = await askAll(waiting, engine, options)
      resumed.push(...asked.resumed)
      gone.push(...asked.ended)
      if (asked.failure !== undefined) throw asked.failure
      options.signal?.throwIfAborted()
      const live = new Set(resumed.map(({ kept: { index } }) => index))
      const isNeeded = ({ kept: server }: GoneServer) => needed(engine, ofSession(server), live, backedUp)
      const refusing = asked.forbidden.find(isNeeded)
      if (refusing !== undefined) throw refusedBy(refusing)
      const silent = asked.silent.filter(
        (each) => performance.now() - started < each.kept.linger && isNeeded(each),
      )
      gone.push(...asked.forbidden, ...asked.silent.filter((each) => !silent.includes(each)))
      if (silent.length === 0) return { resumed, gone }
      waiting = silent.map((each) => each.kept)
      const line = `waiting for ${silent.map(({ kept, reason }) => `${kept.uris.join(' or ')} (${reason})`).join(', ')}: no other server has its slabs`
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

/** Whether a slab can do without its servers after a take-over: what was answered is in the file. */
export function backedUp(
  { backup, engine: given }: Pick<VolumeOptions, 'backup' | 'engine'>,
  engine: Pick<VolumeEngine, 'lackingInBackup' | 'missingInBackup'>,
): (slab: number) => boolean {
  if (backup === undefined) return () => false
  // A WRITE was answered when the file had it, so one that was open is all that may be missing, and the kernel repeats
  // it. More is missing from a file that had failed, or is another one, or is being caught up.
  if (given?.acknowledge === 'backup') return (slab) => engine.lackingInBackup(slab) === 0
  return (slab) => engine.missingInBackup(slab) === 0
}
