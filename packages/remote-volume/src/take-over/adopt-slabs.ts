import type { RemoteSlab } from '@rdmakit/swap-server'
import type { VolumeEngine } from '../engine/volume-engine.js'
import { freeIndex, VolumeServer } from '../servers/volume-server.js'
import { placeOf, type SlabReplica, type SlabTable } from '../slabs/slab-table.js'
import type { TakenSessions } from './ask-sessions.js'
import { FAILED_BEFORE } from './take-sessions.js'

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

/** The outcome per slab: numbers of slabs. */
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
