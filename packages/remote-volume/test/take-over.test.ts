// What a process that takes a volume over believes of the slab map, on records that a process leaves only when it dies
// at one moment.

import { EXIT } from '@rdmakit/operator-kit'
import { SwapServerError, SwapServerSession } from '@rdmakit/swap-server'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import type { VolumeEngine } from '../src/engine/volume-engine.js'
import { SlabTable } from '../src/slabs/slab-table.js'
import { adoptSlabs, serversOf } from '../src/take-over/adopt-slabs.js'
import type { KeptServer } from '../src/take-over/kept-volume.js'
import { backedUp, incarnationsToResume, takeSessions } from '../src/take-over/take-sessions.js'
import { makeEngine } from './helpers/engine.js'

import { MIB } from './helpers/swap-servers.js'

const SLABS = 4
const place = (server: number, slab = 0) => ({
  server,
  remoteKey: 7 + server,
  address: BigInt(MIB * (1 + slab)),
})

function kept(index: number, rest: Partial<KeptServer> = {}): KeptServer {
  return {
    index,
    uris: [`iwarp://127.0.0.1:${1 + index}`],
    identity: { epoch: '0123456789abcdef', session: 100 + index, token: new Uint8Array(16) },
    linger: 0,
    ...rest,
  }
}

/** A server that still has the session, with its slabs. */
function resumed(index: number) {
  const slabs = Array.from({ length: SLABS }, (_, slab) => {
    const { remoteKey, address } = place(index, slab)
    return { id: slab + 1, remoteKey, address, length: MIB }
  })
  return { kept: kept(index), session: {} as SwapServerSession, slabs }
}

describe('a slab map', () => {
  it('with a replica that was being filled is one without it', async () => {
    await using engine = makeEngine({ size: SLABS * MIB, slabSize: MIB })
    engine.mapSlab(0, place(0))
    engine.addReplica(0, place(1))
    engine.mapSlab(1, place(0, 1), place(1, 1))
    for (const slab of [2, 3]) engine.mapSlab(slab, place(1, slab), place(0, slab))
    const taken = { resumed: [resumed(0), resumed(1)], gone: [] }
    const table = new SlabTable(engine, 2)
    const servers = serversOf(taken)
    const adopted = adoptSlabs(engine, table, servers, taken, false)
    expect(adopted).toMatchObject({ degraded: 1, lost: 0 })
    expect(table.state(0)).toBe('degraded')
    expect(table.state(1)).toBe('mapped')
    expect(engine.lookUpSlab(0)).toEqual([{ ...place(0), live: true, leaving: false }])
    // It is nobody's, and goes back.
    const [, second] = servers
    expect([...adopted.orphans].map(([server, slabs]) => [server, slabs.map(({ id }) => id)])).toEqual([
      [second, [1]],
    ])
  })

  it('with a replica that was about to be dropped is one without it, unless no other is left', async () => {
    await using engine = makeEngine({ size: SLABS * MIB, slabSize: MIB })
    for (const slab of [0, 1, 2, 3]) engine.mapSlab(slab, place(0, slab), place(slab < 2 ? 1 : 2, slab))
    for (const slab of [0, 1, 2, 3]) engine.retireReplica(slab, 0)
    // Server 2 is gone, which had the other replica of two slabs.
    const taken = { resumed: [resumed(0), resumed(1)], gone: [{ kept: kept(2), reason: 'test' }] }
    const table = new SlabTable(engine, 1)
    const adopted = adoptSlabs(engine, table, serversOf(taken), taken, false)
    expect(adopted).toMatchObject({ degraded: 0, lost: 0 })
    for (const [slab, server] of [1, 1, 0, 0].entries())
      expect(engine.lookUpSlab(slab)).toEqual([{ ...place(server, slab), live: true, leaving: false }])
  })
})

describe('of the incarnations of a server', () => {
  const { identity } = kept(0)
  const first = kept(4, { away: true, identity })
  const second = kept(1, { identity })
  const of = (failed: number[], alone = true, all = [first, second]) =>
    incarnationsToResume(all, new Set(failed), () => alone)

  it('the one that joined last goes on, whatever its index', () => {
    expect(of([4])).toEqual([second])
    expect(of([])).toEqual([second])
    expect(of([], true, [second, first])).toEqual([first])
  })

  it('the one that was waited for goes on when a later one had failed to join', () => {
    expect(of([1, 4])).toEqual([first])
  })

  it('none goes on that had failed, and had not the only copy of anything', () => {
    expect(of([1, 4], false)).toEqual([])
    expect(of([1], false, [second])).toEqual([])
  })
})

it('an index that only the slab map names is nobody’s', () => {
  const servers = serversOf({ resumed: [resumed(1)], gone: [] }, [0, 3])
  expect(servers.map(({ isVacant }) => isVacant)).toEqual([true, false, true, true])
})

/** Asks no server; those that are asked for have their sessions. */
function sessions() {
  const asked: number[] = []
  vi.spyOn(SwapServerSession, 'resume').mockImplementation(async (_, { session }) => {
    asked.push(session - 100)
    return { slabSize: MIB, list: async () => [] } as unknown as SwapServerSession
  })
  onTestFinished(() => void vi.restoreAllMocks())
  return asked
}

describe('a server that had failed and was waited for', () => {
  const take = (engine: VolumeEngine, servers: readonly KeptServer[], backedUp = () => false) =>
    takeSessions(engine, servers, {}, backedUp, () => {})

  it('is believed when it alone has a slab', async () => {
    const asked = sessions()
    await using engine = makeEngine({ size: MIB, slabSize: MIB })
    engine.mapSlab(0, place(1))
    engine.failServer(1)
    const { gone } = await take(engine, [kept(1, { away: true })])
    expect(gone).toEqual([])
    expect(asked).toEqual([1])
  })

  it('is not believed beside another one on record: who of them missed what, only the process knew', async () => {
    const asked = sessions()
    await using engine = makeEngine({ size: MIB, slabSize: MIB })
    engine.mapSlab(0, place(0), place(1))
    for (const server of [0, 1]) engine.failServer(server)
    const { gone } = await take(engine, [kept(0), kept(1, { away: true })])
    expect(gone.map(({ kept: { index }, reason }) => [index, reason])).toEqual([
      [0, 'it failed before the restart'],
      [1, 'it failed before the restart'],
    ])
    expect(asked).toEqual([])
  })

  it('is not believed when it was not waited for, or the backup has its slabs', async () => {
    const asked = sessions()
    await using engine = makeEngine({ size: MIB, slabSize: MIB })
    engine.mapSlab(0, place(1))
    engine.failServer(1)
    await take(engine, [kept(1)])
    await take(engine, [kept(1, { away: true })], () => true)
    expect(asked).toEqual([])
  })
})

describe('a server that refuses a session for what waiting does not mend', () => {
  /** Servers refuse with these codes, or give the session: by index. */
  function answers(...codes: (string | undefined)[]) {
    const leave = vi.fn(async () => {})
    vi.spyOn(SwapServerSession, 'resume').mockImplementation(async (_, { session }) => {
      const code = codes[session - 100]
      if (code !== undefined) throw new SwapServerError(code, `it says ${code}`)
      return { slabSize: MIB, list: async () => [], leave } as unknown as SwapServerSession
    })
    onTestFinished(() => void vi.restoreAllMocks())
    return { leave }
  }

  const takes = async (engine: VolumeEngine, servers: readonly KeptServer[], backedUp = () => false) => {
    const told: string[] = []
    const taken = takeSessions(engine, servers, {}, backedUp, (step) => told.push(step))
    return { told, outcome: await taken.catch((failure: unknown) => failure) }
  }

  it.each([
    ['EACCES', EXIT.forbidden],
    ['EPROTO', EXIT.unavailable],
    ['EDQUOT', EXIT.unavailable],
  ])('with %s is said at once, and nothing that it alone has is given up', async (code, status) => {
    const { leave } = answers(code, undefined)
    await using engine = makeEngine({ size: 2 * MIB, slabSize: MIB })
    for (const slab of [0, 1]) engine.mapSlab(slab, place(slab, slab))
    const { told, outcome } = await takes(engine, [kept(0, { linger: 300_000 }), kept(1)])
    expect(outcome).toMatchObject({ name: 'Error', status })
    expect((outcome as Error).message).toMatch(
      new RegExp(`\\(${code}\\): it says ${code}\\. No other server has them.*within 300 s of the end`),
    )
    expect(told).toEqual([])
    // The other one's lingers, for the next process.
    expect(leave).toHaveBeenCalledOnce()
    expect(engine.failedServers()).toEqual([])
  })

  it('is missed where another replica or the backup will do, and named', async () => {
    answers('EACCES', undefined)
    await using engine = makeEngine({ size: MIB, slabSize: MIB })
    engine.mapSlab(0, place(0), place(1))
    const { outcome } = await takes(engine, [kept(0), kept(1)])
    expect(outcome).toMatchObject({ gone: [{ reason: 'it says EACCES' }], resumed: [{ kept: { index: 1 } }] })
    answers('EACCES', 'EACCES')
    expect((await takes(engine, [kept(0), kept(1)], () => true)).outcome).toMatchObject({
      gone: [{ reason: 'it says EACCES' }, { reason: 'it says EACCES' }],
    })
  })

  it('that says no more than that it is busy is waited for, and why is said once', async () => {
    const linger = 2_500
    answers('EUSERS')
    await using engine = makeEngine({ size: MIB, slabSize: MIB })
    engine.mapSlab(0, place(0))
    const { told, outcome } = await takes(engine, [kept(0, { linger })])
    expect(told).toEqual(['waiting for iwarp://127.0.0.1:1 (it says EUSERS): no other server has its slabs'])
    expect(outcome).toMatchObject({ gone: [{ reason: 'it says EUSERS' }] })
  })
})

describe('a slab can do without its servers', () => {
  /** Pages that are missing in the file, by slab; three of slab 1 were being written. */
  const engine = (...missing: number[]) => ({
    missingInBackup: (slab: number) => missing[slab] ?? 0,
    lackingInBackup: (slab: number) => Math.max(0, (missing[slab] ?? 0) - 3 * slab),
  })
  const backup = { file: '/srv/backup' }
  const slabs = (of: (slab: number) => boolean) => [0, 1].map((slab) => of(slab))

  it('not without a backup', () => {
    expect(slabs(backedUp({}, engine()))).toEqual([false, false])
  })

  it('when the file has all of it', () => {
    expect(slabs(backedUp({ backup }, engine(0, 1)))).toEqual([true, false])
  })

  it('with --ack backup, also when it lacks what was being written, and nothing else', () => {
    const all = { backup, engine: { acknowledge: 'backup' } } as const
    expect(slabs(backedUp(all, engine(0, 3)))).toEqual([true, true])
    // The file had failed, or is another one.
    expect(slabs(backedUp(all, engine(1, 4)))).toEqual([false, false])
  })
})
