import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ServerFailure } from '@rdmakit/remote-volume'
import { type SwapServer, type SwapServerOptions, Tenants } from '@rdmakit/swap-server'
import { deferred } from '@rdmakit/verbs/internal'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { BlockEngine } from '../../src/engine/block-engine.js'
import type { Volume, VolumeOptions } from '../../src/engine/block-volume.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'
import { openVolume } from '../helpers/volumes.js'

const lend = (slabs: number, lending: SwapServerOptions['lending'] = {}) =>
  serve(slabs, 'iwarp://127.0.0.1:0', { lending: { interval: 50, ...lending } })

const open = (uris: readonly string[], options: Partial<VolumeOptions> = {}) =>
  openVolume(uris, { size: 8 * MIB, ...options })

/** Writes pages at random and reads them back, until told to stop; a wrong byte or an error is thrown. */
class VerifiedLoad {
  readonly #client: Client
  readonly #size: number
  /** what each page holds */
  readonly #pages: Uint8Array
  readonly #ended: Promise<void>
  operations = 0
  #stopping = false

  constructor(volume: Volume) {
    this.#client = new Client(volume.engine.attachSocketpair(0))
    this.#size = volume.size
    this.#pages = new Uint8Array(volume.size / 4096)
    this.#ended = this.#run()
    this.#ended.catch(() => {})
  }

  /** Ends it, then reads all of the volume. */
  async stop(): Promise<void> {
    this.#stopping = true
    await this.#ended
    for (let page = 0; page < this.#pages.length; page++) await this.#check(page)
    this.#client.close()
  }

  async #run(): Promise<void> {
    while (!this.#stopping) {
      const page = Math.floor((Math.random() * this.#size) / 4096)
      const byte = 1 + (this.operations % 255)
      const written = await this.#client.request(WRITE, page * 4096, 4096, Buffer.alloc(4096, byte))
      if (written?.error !== 0) throw new Error(`a write of page ${page} failed: ${written?.error}`)
      this.#pages[page] = byte
      await this.#check(Math.floor((Math.random() * this.#size) / 4096))
      this.operations++
    }
  }

  async #check(page: number): Promise<void> {
    const read = await this.#client.request(READ, page * 4096, 4096)
    if (read?.error !== 0) throw new Error(`a read of page ${page} failed: ${read?.error}`)
    const expected = this.#pages[page] as number
    if (!read.data.equals(Buffer.alloc(4096, expected))) throw new Error(`page ${page} is wrong`)
  }
}

describe('a server that wants its memory back', () => {
  it.each([
    ['one replica', 1],
    ['two replicas', 2],
    ['three replicas', 3],
  ])('gets it under load, and no byte is wrong: %s', async (_, replicas) => {
    const made = [await lend(16), await lend(16), await lend(16), await lend(16)]
    const said: string[] = []
    await using volume = await open(
      made.map(({ uri }) => uri),
      { replicas, progress: (step) => said.push(step) },
    )
    const load = new VerifiedLoad(volume)
    await eventually(() => load.operations > 100)
    const lent = () => made.map(({ server }) => server.store.total - server.store.free)
    const first = lent().indexOf(Math.max(...lent()))
    const before = lent()[first] as number
    const outcome = await (made[first] as { server: SwapServer }).server.lending.hold({
      bytes: before * MIB,
      duration: 60_000,
      patience: 50_000,
    })
    expect(outcome).toMatchObject({ asked: before, freed: before, moving: 0 })
    expect(lent()[first]).toBe(0)
    const moved = load.operations
    await eventually(() => load.operations > moved + 100)
    await eventually(() => volume.slabs.mapped === 8)
    await load.stop()
    expect(volume.slabs).toEqual({ mapped: 8, degraded: 0, refilling: 0, away: 0, backup: 0, lost: 0 })
    expect(volume.servers.map(({ failure }) => failure)).toEqual([undefined, undefined, undefined, undefined])
    expect(volume.migration.moved).toBeGreaterThan(0)
    expect(said.join('\n')).toMatch(/needs its memory back: moving \d+ MiB to other servers/)
    expect(said.join('\n')).toMatch(/\d+ MiB moved away from iwarp/)
  })

  it('gives spares first, for they cost no copy, and takes none again meanwhile', async () => {
    const made = [await lend(16), await lend(16)]
    await using volume = await open(
      made.map(({ uri }) => uri),
      { replicas: 2, spares: 3 },
    )
    await eventually(() => volume.servers.every(({ spares }) => spares === 3))
    const { server } = made[0] as { server: SwapServer }
    // With two servers and two replicas nothing else can go.
    const outcome = await server.lending.hold({ bytes: 3 * MIB, duration: 60_000, patience: 50_000 })
    expect(outcome).toMatchObject({ asked: 3, freed: 3 })
    expect(volume.migration.moved).toBe(0)
    expect(server.store.free).toBe(16 - 8)
  })

  it('keeps what cannot be moved for lack of room, and lends nothing meanwhile', async () => {
    const made = [await lend(16), await lend(16)]
    await using volume = await open(
      made.map(({ uri }) => uri),
      { replicas: 2, spares: 0 },
    )
    const load = new VerifiedLoad(volume)
    const { server } = made[0] as { server: SwapServer }
    const outcome = await server.lending.hold({ bytes: 4 * MIB, duration: 60_000, patience: 500 })
    expect(outcome).toMatchObject({ asked: 4, freed: 0, moving: 0 })
    expect(server.store.free).toBe(8)
    expect(server.query('operator').freeSlabs).toBe(0)
    await server.lending.hold({ bytes: 0, duration: 0, patience: 0 })
    expect(server.query('operator').freeSlabs).toBe(8)
    await load.stop()
    expect(volume.slabs.mapped).toBe(8)
  })

  it('goes on when the server dies in the middle of it', async () => {
    const made = [await lend(16), await lend(16), await lend(16)]
    await using volume = await open(
      made.map(({ uri }) => uri),
      { replicas: 2, engine: { refillRate: 4 * MIB } },
    )
    const load = new VerifiedLoad(volume)
    await eventually(() => load.operations > 100)
    const { server } = made[0] as { server: SwapServer }
    const asked = server.lending.hold({ bytes: 16 * MIB, duration: 60_000, patience: 500 })
    await eventually(() => volume.engine.statistics().refill?.active === true)
    await server.close()
    await asked
    await eventually(() => volume.slabs.mapped === 8)
    await eventually(() => volume.migration.waiting === 0)
    await load.stop()
    expect(volume.slabs).toMatchObject({ mapped: 8, degraded: 0, lost: 0 })
    expect(volume.servers.map(({ failure }) => failure === undefined)).toEqual([false, true, true])
  })

  // Control gives the old place up, and waits for lanes, when both servers fail, as behind one link. Which of the two
  // came last has all that was answered, and is waited for.
  it.each([
    ['the old one last, as control hears of both at once', false, [1, 0]],
    ['the old one last, when control has heard of the other one', true, [1, 0]],
    ['the new one last', false, [0, 1]],
  ])('has what was on its way when both servers are back: %s', async (_, heard, order) => {
    const made = [await serve(8, undefined, { lending: { interval: 50 } }), await serve(8)]
    await using volume = await open(
      made.map(({ uri }) => uri),
      { size: 4 * MIB, spares: 0, reconnect: 60_000 },
    )
    const client = new Client(volume.engine.attachSocketpair(0))
    expect((await client.request(WRITE, 0, 4 * MIB, Buffer.alloc(4 * MIB, 7)))?.error).toBe(0)
    const synchronize = BlockEngine.prototype.synchronize
    const [reached, go] = [deferred<void>(), deferred<void>()]
    vi.spyOn(BlockEngine.prototype, 'synchronize').mockImplementationOnce(async function (this: BlockEngine) {
      reached.resolve()
      await go.promise
      await synchronize.call(this)
    })
    onTestFinished(() => void vi.restoreAllMocks())
    const { server } = made[0] as { server: SwapServer }
    const asked = server.lending.hold({ bytes: 8 * MIB, duration: 60_000, patience: 500 })
    await reached.promise
    const failures: ServerFailure[] = []
    volume.onServerFailure((failure) => failures.push(failure))
    for (const index of order) {
      volume.engine.failServer(index, 'the test said so')
      if (heard) await eventually(() => failures.some((failure) => failure.server.index === index))
    }
    await eventually(() => failures.length === 2)
    go.resolve()
    await server.lending.hold({ bytes: 0, duration: 0, patience: 0 })
    await asked
    const read = await client.request(READ, 0, 4 * MIB)
    expect(failures.map(({ lost }) => lost)).toEqual([0, 0])
    expect(read?.error).toBe(0)
    expect(read?.data.equals(Buffer.alloc(4 * MIB, 7))).toBe(true)
    await eventually(() => volume.slabs.mapped === 4)
    expect(volume.engine.statistics().lostPages).toBe(0)
    client.close()
  })

  it('can close its volume in the middle of it', async () => {
    const made = [await lend(16), await lend(16), await lend(16)]
    const volume = await open(
      made.map(({ uri }) => uri),
      { replicas: 2, engine: { refillRate: MIB } },
    )
    const load = new VerifiedLoad(volume)
    await eventually(() => load.operations > 100)
    await load.stop()
    const { server } = made[0] as { server: SwapServer }
    const asked = server.lending.hold({ bytes: 16 * MIB, duration: 60_000, patience: 2_000 })
    await eventually(() => volume.engine.statistics().refill?.active === true)
    await volume.close()
    await asked
    await eventually(() => made.every(({ server: each }) => each.store.free === 16))
    expect(volume.migration.moved).toBeLessThan(8)
  })

  it('asks for the slabs that were idle for longest', async () => {
    const made = [await lend(16), await lend(16)]
    await using volume = await open(
      made.map(({ uri }) => uri),
      { size: 4 * MIB, spares: 0 },
    )
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let slab = 0; slab < 4; slab++) await client.request(WRITE, slab * MIB, 4096, Buffer.alloc(4096, 1))
    await eventually(() => volume.engine.idle(0) > 500)
    await client.request(WRITE, 0, 4096, Buffer.alloc(4096, 2))
    const idle = [0, 1, 2, 3].map((slab) => volume.engine.idle(slab))
    // It was the last one, whenever that was.
    expect(Math.min(...idle.slice(1))).toBeGreaterThan(idle[0] as number)
    client.close()
  })
})

describe('limits of a server', () => {
  it('are told to its clients, who keep them', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'limits-'))
    const file = join(folder, 'tenants.json')
    writeFileSync(file, JSON.stringify({ tenants: [{ name: 'default', operationsPerSecond: 100 }] }))
    const tenants = Tenants.load(file)
    rmSync(folder, { recursive: true })
    const { server, uri } = await serve(16, 'iwarp://127.0.0.1:0', { tenants })
    await using volume = await open([uri])
    const client = new Client(volume.engine.attachSocketpair(0))
    const started = performance.now()
    for (let at = 0; at < 60; at++)
      expect((await client.request(WRITE, at * 4096, 4096, Buffer.alloc(4096, 7)))?.error).toBe(0)
    // 60 operations at 100/s, less a burst of 20 ms; a slow machine takes longer still.
    expect(performance.now() - started).toBeGreaterThan(550)
    await eventually(() => (server.query('operator').tenants?.[0]?.usage?.operationsPerSecond ?? 0) > 0)
    expect(server.query('operator').tenants?.[0]).toMatchObject({
      name: 'default',
      sessions: 1,
      slabs: 8,
      limits: { bytesPerSecond: 0, operationsPerSecond: 100 },
    })
    client.close()
  })

  it('hold its requests back, and are lifted at once', async () => {
    const { uri } = await lend(16)
    await using volume = await open([uri])
    const client = new Client(volume.engine.attachSocketpair(0))
    volume.engine.setLimits(0, { bytes: 0, operations: 100 })
    const started = performance.now()
    for (let at = 0; at < 30; at++)
      expect((await client.request(WRITE, at * 4096, 4096, Buffer.alloc(4096, 7)))?.error).toBe(0)
    // 30 operations at 100/s, less a burst of 20 ms; a slow machine takes longer still.
    expect(performance.now() - started).toBeGreaterThan(250)
    expect(volume.engine.usage(0)).toEqual({ bytes: 30 * 4096, operations: 30 })
    const waitedFor = () => volume.engine.statistics().lanes[0]?.turnsWaitedFor ?? 0
    const limited = waitedFor()
    expect(limited).toBeGreaterThan(0)
    volume.engine.setLimits(0, { bytes: 0, operations: 0 })
    for (let at = 0; at < 300; at++) await client.request(READ, (at % 30) * 4096, 4096)
    // With the limit most would have waited.
    expect(waitedFor()).toBe(limited)
    client.close()
  })
})
