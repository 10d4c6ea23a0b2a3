import { existsSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { ADDRESSES, serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { MIB, READ, TRIM, WRITE } from '../helpers/fixture.js'
import {
  eventually,
  PAGES,
  startVolume,
  temporaryFolder,
  type VolumeProcess,
  Workload,
} from '../helpers/volume-client.js'

const PAGE = 4096
/** Writes before a process is killed. */
const SOME = 100

let state: string
let servers: Awaited<ReturnType<typeof serve>>[]

beforeEach(() => {
  state = temporaryFolder()
  servers = []
})

function start(replicas: number, thin = false, backup?: { file: string }): VolumeProcess {
  return startVolume({ state, servers: servers.map(({ uri }) => uri), replicas, thin, backup })
}

async function lend(uri: string): Promise<void> {
  servers.push(await serve(16, uri))
}

describe.each(Object.entries(ADDRESSES))(
  'a process killed in the middle of writes, over %s',
  (_, address) => {
    it.each([
      [1, false],
      [2, false],
      [1, true],
      [2, true],
    ])('is followed by others without a wrong page, with %i replicas, thin: %s', async (replicas, thin) => {
      for (let i = 0; i < replicas; i++) await lend(address())
      const workload = new Workload()
      let volume = start(replicas, thin)
      await volume.ready()
      for (const file of ['volume.json', 'slabs.map', 'pages.map', 'lock'])
        expect(statSync(join(state, file)).mode & 0o777).toBe(0o600)
      // For one volume the process that has taken it over is killed too.
      const rounds = effort(replicas === 2 && thin ? 2 : 1)
      for (let round = 1; round <= rounds; round++) {
        const { written } = workload
        const running = workload.run(volume)
        await eventually(() => workload.written > written + SOME)
        await volume.end('SIGKILL')
        await running
        volume = start(replicas, thin)
        expect(await volume.ready()).toMatch(/^degraded 0 lost 0$/m)
        await workload.repeat(volume)
        expect(await workload.verify(volume)).toBe(0)
      }
      expect(await volume.end('SIGTERM')).toBe(0)
      expect(existsSync(join(state, 'volume.json'))).toBe(false)
      for (const { server } of servers) expect(server.store.free).toBe(16)
    })
  },
)

it('a thin volume gives back what was discarded just before its process was killed', async () => {
  servers.push(await serve(3, ADDRESSES.shm()))
  const contents = Buffer.alloc(PAGE, 1)
  const pageOf = (slab: number) => (slab * MIB) / PAGE
  const write = (slab: number) => volume.request(WRITE, pageOf(slab), contents)
  let volume = start(1, true)
  await volume.ready()
  for (const slab of [0, 1]) expect(await write(slab)).toMatchObject({ error: 0 })
  // The third place is ready, so nothing is in a hurry: it looks 200 ms later.
  expect(await volume.request(TRIM, pageOf(1))).toMatchObject({ error: 0 })
  await volume.end('SIGKILL')
  volume = start(1, true)
  await volume.ready()
  for (const slab of [2, 3]) expect(await write(slab)).toMatchObject({ error: 0 })
  expect((await volume.request(READ, pageOf(0)))?.data).toEqual(contents)
})

describe.each(Object.entries(ADDRESSES))('with a backup, a process killed over %s', (_, address) => {
  /** A volume on one server, with --ack backup, whose process died in the middle of writes. */
  async function killed() {
    await lend(address())
    const backup = { file: join(state, 'backup') }
    const workload = new Workload()
    const volume = start(1, false, backup)
    await volume.ready()
    const running = workload.run(volume)
    await eventually(() => workload.written > SOME)
    await volume.end('SIGKILL')
    await running
    return { workload, backup }
  }

  it('together with its only server loses nothing, and goes on when the server comes back', async () => {
    const { workload, backup } = await killed()
    const gone = servers[0] as (typeof servers)[number]
    await gone.server.close()
    const volume = start(1, false, backup)
    expect(await volume.ready()).toMatch(/^degraded 0 lost 0\nbacked up 4$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
    await lend(gone.uri)
    const running = workload.run(volume)
    await volume.said(/^refilled$/m)
    workload.stop()
    await running
    expect(await workload.verify(volume)).toBe(0)
  })

  it('finds its server again, and believes no backup that a process without it has outdated', async () => {
    const { workload, backup } = await killed()
    let volume = start(1, false, backup)
    expect(await volume.ready()).toMatch(/^degraded 0 lost 0\nbacked up 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
    await volume.end('SIGKILL')
    expect(statSync(join(state, 'backup.map')).mode & 0o777).toBe(0o600)
    volume = start(1)
    await volume.ready()
    await volume.end('SIGKILL')
    expect(existsSync(join(state, 'backup.map'))).toBe(false)
  })
})

describe('a successor', () => {
  beforeEach(async () => {
    for (let i = 0; i < 2; i++) await lend(ADDRESSES.shm())
  })

  /** A volume that was written all over and whose process is dead. */
  async function killed(replicas: number, before: (volume: VolumeProcess) => Promise<void> = async () => {}) {
    const workload = new Workload()
    const volume = start(replicas)
    await volume.ready()
    const running = workload.run(volume)
    await eventually(() => workload.written > SOME)
    await before(volume)
    const written = workload.written
    await eventually(() => workload.written > written + SOME)
    await volume.end('SIGKILL')
    await running
    return workload
  }

  it('goes on without a server that died together with the process', async () => {
    const workload = await killed(2)
    await servers[0]?.server.close()
    const volume = start(2)
    expect(await volume.ready()).toMatch(/^degraded 4 lost 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
  })

  it('does not trust a server that had failed and missed writes, though it still has the session', async () => {
    const workload = await killed(2, async (volume) => {
      volume.process.kill('SIGUSR2')
      await volume.said(/^failed$/m)
    })
    expect(servers[1]?.server.store.free).toBeLessThan(16)
    const volume = start(2)
    expect(await volume.ready()).toMatch(/^degraded 4 lost 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
  })

  /** A volume without replicas whose process died when server 0 had failed. */
  async function diedAfterFailure(how: string): Promise<Workload> {
    process.env.TEST_FAILS = how
    onTestFinished(() => void delete process.env.TEST_FAILS)
    const workload = new Workload()
    const volume = start(1)
    await volume.ready()
    const running = workload.run(volume)
    await eventually(() => workload.written > SOME)
    volume.process.kill('SIGUSR2')
    await volume.said(/^failed$/m)
    await volume.end('SIGKILL')
    await running
    return workload
  }

  it('believes the only copy of a server that was away when the process died', async () => {
    const workload = await diedAfterFailure('away 0')
    for (let round = 1; round <= 2; round++) {
      const volume = start(1)
      expect(await volume.ready()).toMatch(/^degraded 0 lost 0$/m)
      await workload.repeat(volume)
      expect(await workload.verify(volume)).toBe(0)
      // Index 0, the failed server's, is free.
      await eventually(() => {
        const { servers: kept } = JSON.parse(readFileSync(join(state, 'volume.json'), 'utf8'))
        return `${kept.map(({ index }: { index: number }) => index)}` === '1,2'
      })
      await volume.end(round === 1 ? 'SIGKILL' : 'SIGTERM')
    }
    expect(servers[0]?.server.store.free).toBe(16)
  })

  it('believes no server whose failure the process did not live to put in order', async () => {
    await diedAfterFailure('0')
    const volume = start(1)
    expect(await volume.ready()).toMatch(/^degraded 0 lost [1-4]$/m)
  })

  it('does not take a server that was started anew for the one that had the data', async () => {
    const gone = servers[1] as (typeof servers)[number]
    const workload = await killed(2, async () => {
      await gone.server.close()
    })
    await lend(gone.uri)
    const volume = start(2)
    expect(await volume.ready()).toMatch(/^degraded 4 lost 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
  })

  it('says what is lost when the only copy is gone, and serves the rest', async () => {
    await killed(1)
    const held = 16 - (servers[0]?.server.store.free ?? 0)
    await servers[0]?.server.close()
    const ended = servers[0]?.uri as string
    await lend(ended)
    const volume = start(1)
    expect(await volume.ready()).toContain(`degraded 0 lost ${held}`)
    let errors = 0
    for (let page = 0; page < PAGES; page++) {
      const answer = await volume.request(READ, page)
      if (answer?.error !== 0) errors++
    }
    if (held > 0) expect(errors).toBeGreaterThan(0)
    expect(errors).toBeLessThanOrEqual(held * (MIB / PAGE))
  })

  it('gives back what no slab uses', async () => {
    await killed(2)
    // Spare slabs: allocated, and on no record.
    const volume = start(2)
    await volume.ready()
    const expected = 16 - 4 - 1
    await eventually(() => servers.every(({ server }) => server.store.free === expected))
    // The slabs in use are still there.
    expect(await volume.request(READ, 0)).toMatchObject({ error: 0 })
    expect(servers.map(({ server }) => server.store.free)).toEqual(servers.map(() => expected))
  })

  it('cannot be two', async () => {
    const first = start(2)
    await first.ready()
    const second = start(2)
    await expect(second.ready()).rejects.toThrow('it ended with 1')
  })
})
