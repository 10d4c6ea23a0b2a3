import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ProtectionDomain } from '@rdmakit/verbs'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { parseHolding } from '../../src/commands/reclaim.js'
import { type RemoteSlab, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'
import { HostMemorySource } from '../../src/server/memory/host-memory.js'
import { Lending, type LendingOptions } from '../../src/server/memory/lending.js'
import { ownClock } from '../fixture.js'

const MIB = 2 ** 20
const HOUR_MS = 3_600_000

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'lending-'))
})
const ends: (() => Promise<void>)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
  rmSync(folder, { recursive: true })
})

/** A host with the given memory texts. */
class Host {
  readonly files = {
    meminfo: join(folder, 'meminfo'),
    pressure: join(folder, 'pressure'),
    ownCgroup: join(folder, 'cgroup'),
    mounts: join(folder, 'mounts'),
    status: join(folder, 'status'),
    limits: join(folder, 'limits'),
    uidMap: join(folder, 'uid_map'),
  }

  constructor(available: number) {
    this.set(available)
  }

  set(available: number, stalled = 0): void {
    writeFileSync(
      this.files.meminfo,
      `MemTotal:        1048576 kB\nMemFree:  1 kB\nMemAvailable:    ${available / 1024} kB\n`,
    )
    const line = (kind: string) => `${kind} avg10=${stalled.toFixed(2)} avg60=0.00 avg300=0.00 total=0\n`
    writeFileSync(this.files.pressure, line('some') + line('full'))
  }

  /** Puts the process into a cgroup with these limits, from the outermost on. */
  limit(...groups: { max: number | 'max'; current: number; inactive: number }[]): void {
    const mounted = join(folder, 'cgroups')
    writeFileSync(this.files.mounts, `30 25 0:26 / ${mounted} rw - cgroup2 cgroup2 rw\n`)
    let path = mounted
    for (const [depth, { max, current, inactive }] of groups.entries()) {
      path = join(path, `g${depth}`)
      mkdirSync(path, { recursive: true })
      writeFileSync(join(path, 'memory.max'), `${max}\n`)
      writeFileSync(join(path, 'memory.current'), `${current}\n`)
      writeFileSync(join(path, 'memory.stat'), `anon 5\ninactive_file ${inactive}\nactive_file 7\n`)
    }
    writeFileSync(this.files.ownCgroup, `0::/${groups.map((_, depth) => `g${depth}`).join('/')}\n`)
  }
}

async function serve(
  slabs: number,
  lending: Omit<LendingOptions, 'memory' | 'slabSize' | 'owners' | 'log'>,
  tenants?: Tenants,
) {
  const server = new SwapServer({
    memory: slabs * MIB,
    slabSize: MIB,
    lending: { interval: 20, ...lending },
    ...(tenants === undefined ? {} : { tenants }),
  })
  ends.push(() => server.close())
  const uri = await server.listen('iwarp://127.0.0.1:0')
  const connect = async (tenant = 'default') => {
    const session = await SwapServerSession.open([uri], { tenant, heartbeatInterval: 20 })
    ends.push(() => session.close())
    return session
  }
  return { server, connect }
}

/** Frees what the server asks for, after it said so. */
function obliging(session: SwapServerSession, slabs: Map<number, RemoteSlab>, idle = (id: number) => id) {
  const asked: number[] = []
  session.onServerRequest({
    activity: (ids) => ids.map(idle),
    reclaim: (ids) => {
      asked.push(...ids)
      for (const id of ids) {
        const slab = slabs.get(id)
        if (slab !== undefined && slabs.delete(id)) void session.free([slab])
      }
      return ids
    },
  })
  return asked
}

async function borrow(session: SwapServerSession, count: number) {
  return new Map((await session.allocate(count)).map((slab) => [slab.id, slab]))
}

describe('how the host is for memory', () => {
  it('is MemAvailable, and stalls are of PSI', () => {
    const host = new Host(300 * MIB)
    host.set(300 * MIB, 12.5)
    const source = new HostMemorySource(host.files)
    expect(source.total).toBe(1024 * MIB)
    expect(source.read()).toMatchObject({ available: 300 * MIB, stalled: 12.5 })
  })

  it('is what a cgroup above leaves, with the file pages that it could drop', () => {
    const host = new Host(300 * MIB)
    host.limit(
      { max: 200 * MIB, current: 150 * MIB, inactive: 20 * MIB },
      { max: 'max', current: 100 * MIB, inactive: 0 },
    )
    expect(new HostMemorySource(host.files).read().available).toBe(70 * MIB)
  })

  it('needs neither PSI nor cgroups', () => {
    const host = new Host(300 * MIB)
    rmSync(host.files.pressure)
    expect(new HostMemorySource(host.files).read()).toMatchObject({ available: 300 * MIB, stalled: 0 })
  })

  it('is real here', () => {
    const source = new HostMemorySource()
    const { available, stalled } = source.read()
    expect(available).toBeGreaterThan(0)
    expect(available).toBeLessThanOrEqual(source.total)
    expect(stalled).toBeGreaterThanOrEqual(0)
  })
})

/** May lock so much, and has pinned that. */
function allowPins(host: Host, limit: number, pinned = 0): void {
  writeFileSync(
    host.files.limits,
    `Max locked memory         ${limit}              ${limit}              bytes\n`,
  )
  writeFileSync(host.files.status, `VmPin:\t${pinned / 1024} kB\nCapEff:\t0000000000000000\n`)
}

describe('a server that pins what it lends', () => {
  const lend = (host: Host, pins: boolean, headroom = 0) => {
    const lending = new Lending({
      ...{ memory: 16 * MIB, slabSize: MIB, owners: () => [], log: pino({ level: 'silent' }) },
      ...{ headroom, pins: () => pins, files: host.files },
    })
    ends.push(async () => lending.close())
    return lending
  }
  const tenant = { name: 'default', quota: undefined }

  it('offers what it may pin, and says what is in the way', async () => {
    const host = new Host(300 * MIB)
    allowPins(host, 8 * MIB, 3 * MIB)
    const lending = lend(host, true)
    expect(lending.free).toBe(5)
    expect(lending.shortfall).toMatch(
      /^5 MiB of 16 MiB can be lent: RLIMIT_MEMLOCK .*5 MiB more; .*LimitMEMLOCK/,
    )
    await expect(lending.lend(tenant, 6, {} as ProtectionDomain)).rejects.toThrow(
      /5 can be lent: RLIMIT_MEMLOCK/,
    )
  })

  it('asks for nothing back when it may pin no more: the host has memory', () => {
    const host = new Host(300 * MIB)
    allowPins(host, 0)
    const lending = lend(host, true, 100 * MIB)
    expect([lending.free, lending.reclaim.missing]).toEqual([0, 0])
  })

  it('is the only one for whom that counts', () => {
    const host = new Host(300 * MIB)
    allowPins(host, 0)
    expect(lend(host, false).free).toBe(16)
    expect(lend(host, false, 100 * MIB).free).toBe(16)
  })

  it('says at the start what it cannot lend, and of which limit', () => {
    const host = new Host(300 * MIB)
    host.limit({ max: 108 * MIB, current: 0, inactive: 0 })
    expect(lend(host, false, 100 * MIB).shortfall).toMatch(
      /^8 MiB of 16 MiB can be lent: the host keeps 100 MiB .* \(the memory limit of .*g0\)$/,
    )
    host.limit({ max: 200 * MIB, current: 0, inactive: 0 })
    expect(lend(host, false, 100 * MIB).shortfall).toBeUndefined()
  })
})

it('a slab that is just being lent is counted once, whatever heartbeats say meanwhile', async () => {
  const { server, connect } = await serve(4, {})
  const session = await connect()
  const { store } = server
  const allocate = store.allocate.bind(store)
  let letGo = () => {}
  const held = new Promise<void>((resolve) => {
    letGo = resolve
  })
  let begun = false
  store.allocate = async (...request) => {
    const slabs = await allocate(...request)
    begun = true
    await held
    return slabs
  }
  let beats = 0
  session.meter(
    () => {
      beats++
      return { bytes: 0, operations: 0 }
    },
    () => {},
  )
  const lent = session.allocate(1)
  await eventually(() => begun)
  const before = beats
  // The first of them was answered before the third is sent.
  await eventually(() => beats >= before + 3)
  letGo()
  await lent
  expect(session.freeSlabs).toBe(3)
})

describe('a server whose host needs memory', () => {
  it('lends only what leaves the headroom', async () => {
    const host = new Host(104 * MIB)
    const { server, connect } = await serve(8, { headroom: 100 * MIB, files: host.files })
    const session = await connect()
    expect(session.freeSlabs).toBe(4)
    await expect(session.allocate(5)).rejects.toMatchObject({
      code: 'ENOSPC',
      message: expect.stringMatching(/4 can be lent: the host keeps 100 MiB/),
    })
    await session.allocate(4)
    host.set(100 * MIB)
    await eventually(() => session.freeSlabs === 0)
    await expect(session.allocate(1)).rejects.toMatchObject({ code: 'ENOSPC' })
    expect(server.store.free).toBe(4)
  })

  it('asks owners for what is missing and a quarter of the headroom, and stops when it is there', async () => {
    const host = new Host(200 * MIB)
    const { server, connect } = await serve(16, { headroom: 8 * MIB, files: host.files })
    const session = await connect()
    const asked = obliging(session, await borrow(session, 16))
    // The host has the memory of a slab in the moment in which it is free: before it is looked at again.
    const { lending } = server
    const takeBack = lending.takeBack.bind(lending)
    vi.spyOn(lending, 'takeBack').mockImplementation((tenant, slabs) => {
      takeBack(tenant, slabs)
      host.set((7 + lending.reclaim.reclaimed) * MIB)
    })
    const looks = vi.spyOn(HostMemorySource.prototype, 'read')
    onTestFinished(() => looks.mockRestore())
    host.set(7 * MIB)
    // 10 MiB are the aim: three slabs.
    await eventually(() => server.store.free === 3 && session.freeSlabs === 2)
    const looked = looks.mock.calls.length
    await eventually(() => looks.mock.calls.length > looked + 3)
    expect(asked).toHaveLength(3)
    expect(server.query('operator').pressure).toMatchObject({
      availableBytes: 10 * MIB,
      headroomBytes: 8 * MIB,
      reclaimingSlabs: 0,
      reclaimedSlabs: 3,
    })
  })

  it('takes the least active of all that it looked at', async () => {
    const { server, connect } = await serve(8, { files: new Host(1).files })
    const [first, second] = [await connect(), await connect()]
    const slabs = [await borrow(first, 3), await borrow(second, 3)]
    // The larger its number, the longer a slab was idle: 4, 5 and 6 are the second session's. All 6 are looked at.
    const asked = [obliging(first, slabs[0] as never), obliging(second, slabs[1] as never)]
    await server.lending.hold({ bytes: 3 * MIB, duration: HOUR_MS, patience: HOUR_MS })
    expect(asked.map((ids) => ids.length)).toEqual([0, 3])
  })

  it('asks others when an owner refuses, does not answer, or does not do it', async () => {
    const { server, connect } = await serve(12, { patience: 100 })
    const refusing = await connect()
    await refusing.allocate(3) // moves nothing, unless told otherwise
    const lying = await connect()
    lying.onServerRequest({ activity: (ids) => ids.map(() => 9999), reclaim: (ids) => ids })
    await lying.allocate(3)
    const failing = await connect()
    failing.onServerRequest({
      activity: () => {
        throw new Error('not today')
      },
      reclaim: () => [],
    })
    await failing.allocate(3)
    const obliged = await connect()
    obliging(obliged, await borrow(obliged, 3), () => 1)
    const outcome = await server.lending.hold({ bytes: 3 * MIB, duration: HOUR_MS, patience: HOUR_MS })
    expect(outcome).toMatchObject({ asked: 3, freed: 3 })
    expect(server.store.free).toBe(3)
  })

  it('counts what comes back because a session ends', async () => {
    const { server, connect } = await serve(4, {})
    const session = await connect()
    await session.allocate(4)
    const held = server.lending.hold({ bytes: 2 * MIB, duration: HOUR_MS, patience: HOUR_MS })
    await session.close()
    expect(await held).toMatchObject({ asked: 2, freed: 2 })
  })

  it('holds back all of it, also where nothing is lent', async () => {
    const { server, connect } = await serve(4, {})
    const session = await connect()
    const all = { bytes: Number.POSITIVE_INFINITY, duration: HOUR_MS, patience: HOUR_MS }
    expect(await server.lending.hold(all)).toMatchObject({ asked: 0, freed: 0 })
    await expect(session.allocate(1)).rejects.toThrow(/the operator holds memory back/)
    await server.lending.hold({ ...all, bytes: 0 })
    obliging(session, await borrow(session, 3))
    expect(await server.lending.hold(all)).toMatchObject({ asked: 3, freed: 3 })
    await expect(session.allocate(1)).rejects.toThrow(/the operator holds memory back/)
  })

  it('lends again when the hold is over', async () => {
    const { server, connect } = await serve(4, {})
    const session = await connect()
    obliging(session, await borrow(session, 4))
    // A second of a clock that goes as the test says.
    const pass = ownClock()
    await server.lending.hold({ bytes: 4 * MIB, duration: 1000, patience: HOUR_MS })
    expect(server.lending.free).toBe(0)
    await expect(session.allocate(1)).rejects.toThrow(/the operator holds memory back/)
    pass(999)
    expect(server.lending.free).toBe(0)
    await eventually(() => {
      pass(1)
      return session.freeSlabs === 4
    })
    await session.allocate(4)
  })
})

describe('a tenant’s quota', () => {
  const tenants = () => {
    const path = join(folder, 'tenants.json')
    writeFileSync(path, JSON.stringify({ tenants: [{ name: 'small', quota: '2M' }, { name: 'large' }] }))
    return Tenants.load(path)
  }

  it('is of all its sessions together, and the others have theirs', async () => {
    const { server, connect } = await serve(8, {}, tenants())
    const [first, second, large] = [await connect('small'), await connect('small'), await connect('large')]
    expect([first.freeSlabs, large.freeSlabs]).toEqual([2, 8])
    const [slab] = await first.allocate(1)
    await expect(second.allocate(2)).rejects.toMatchObject({
      code: 'ENOSPC',
      message: expect.stringMatching(/tenant "small" may have 1 more: its quota is 2 MiB, 1 slabs are taken/),
    })
    await second.allocate(1)
    await large.allocate(6)
    await first.free([slab as RemoteSlab])
    await second.allocate(1)
    await second.close()
    await eventually(() => server.lending.taken('small') === 0)
  })

  it('holds for allocations at once', async () => {
    const { connect } = await serve(8, {}, tenants())
    const [first, second] = [await connect('small'), await connect('small')]
    const results = await Promise.allSettled([first.allocate(2), second.allocate(2)])
    expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
  })
})

describe('what POST /reclaim takes', () => {
  it.each([
    undefined,
    {},
    { bytes: -1, duration: 1, patience: 1 },
    { bytes: 1, duration: 1.5, patience: 1 },
    { bytes: '1', duration: 1, patience: 1 },
    { bytes: 1, duration: 1, patience: 1e12 },
  ])('is not %j', (body) => expect(() => parseHolding(body)).toThrow(/is not a whole number/))
})
