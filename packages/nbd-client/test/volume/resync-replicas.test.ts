import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { resyncReplicas } from '@rdmakit/remote-volume'
import type { SwapServer } from '@rdmakit/swap-server'
import type { MemoryRegion } from '@rdmakit/verbs'
import { beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { lentBy, serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { Volume } from '../../src/engine/block-volume.js'
import { withPageSocket } from '../../src/engine/page-socket.js'
import { currentBoot } from '../../src/upgrade/boot.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { VolumeKeeper } from '../../src/upgrade/volume-keeper.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

const PAGE = 4096
const SIZE = 4 * MIB
const BUSY = 3
/** More than a socket may have listeners before Node warns of a leak. */
const PAGES = [0, 1, 2, 3, 60, 61, 62, 63, 64, 255, 256, 257, 512, 700, 701, 1022, 1023]

const PROGRAM = fileURLToPath(new URL('../../dist/cli.js', import.meta.url))
const DIES_IN_RESYNC = new URL('../helpers/dies-in-resync.mjs', import.meta.url).href

/** Every server's memory is at hand here: what a replica holds is looked up there. */
interface Served {
  readonly server: SwapServer
  readonly uri: string
  readonly regions: readonly MemoryRegion[]
}

let path: string
let folder: StateFolder
let servers: Served[]

beforeEach(() => {
  path = temporaryFolder()
  folder = StateFolder.open(join(path, 'state'))
  onTestFinished(() => folder.close())
  servers = []
})

async function lend(): Promise<void> {
  const served = await serve(16)
  servers.push({ ...served, regions: lentBy(served.server) })
}

interface Shape {
  readonly replicas: number
  readonly backup: boolean
}

function options({ replicas, backup }: Shape, keeper: VolumeKeeper) {
  const kept = keeper.options(60_000, backup ? { file: join(path, 'backup') } : undefined)
  const engine = {
    ...kept.engine,
    acknowledge: backup ? ('backup' as const) : ('all' as const),
    resync: true,
  }
  return { ...kept, engine, servers: servers.map(({ uri }) => [uri]), size: SIZE, lanes: 1, replicas }
}

const contents = (page: number) => Buffer.alloc(PAGE, `${page};`)

/**
 * A volume that was written, and whose process died in the middle of a WRITE to each of PAGES.
 * @returns the replicas of each of them
 */
async function leftInTheMiddle(shape: Shape): Promise<Uint8Array[][]> {
  const keeper = new VolumeKeeper(folder, { size: SIZE, replicas: shape.replicas })
  const volume = await Volume.open(options(shape, keeper))
  const client = new Client(volume.engine.attachSocketpair(0))
  for (const page of PAGES)
    expect((await client.request(WRITE, page * PAGE, PAGE, contents(page)))?.error).toBe(0)
  // The last replica has got the half of it.
  for (const page of PAGES)
    replicas(volume, page)
      .at(-1)
      ?.fill(0xaa, PAGE / 2)
  client.close()
  const copies = PAGES.map((page) => replicas(volume, page))
  keeper.served(currentBoot().id)
  await volume.leave()
  const map = readFileSync(folder.pageMap)
  for (const page of PAGES) {
    const at = PAGE + (page >> 2)
    const shift = 2 * (page & 3)
    expect(((map[at] as number) >> shift) & 3).toBe(1)
    map[at] = (map[at] as number) ^ (BUSY << shift) // written -> claimed
  }
  writeFileSync(folder.pageMap, map)
  return copies
}

async function takeOver(shape: Shape, readOnly = false): Promise<Volume> {
  const kept = folder.read()
  if (kept === undefined) throw new Error('nothing is kept')
  const { engine, ...others } = options(shape, new VolumeKeeper(folder, kept, kept))
  const { volume } = await Volume.takeOver({ ...others, engine: { ...engine, readOnly } }, kept)
  return volume
}

/** The bytes of a page in the memory of each server that has it, in the order in which they are read. */
function replicas({ engine }: Volume, page: number): Uint8Array[] {
  const at = page * PAGE
  return (engine.lookUpSlab(Math.floor(at / MIB)) ?? []).map(({ server, remoteKey, address }) => {
    const region = servers[server]?.regions.find((each) => each.remoteKey === remoteKey)
    if (region === undefined || region.address !== address) throw new Error('no server has that slab')
    return new Uint8Array(region.buffer, at % MIB, PAGE)
  })
}

/** Runs nbd-client until it is ready, or is killed by itself before its resync sends one more than `writes` WRITEs. */
async function serveUntil(writes: number): Promise<'ready' | NodeJS.Signals | null> {
  const child = spawn(
    process.execPath,
    [
      ...['--import', DIES_IN_RESYNC, PROGRAM, 'serve'],
      ...servers.flatMap(({ uri }) => ['--server', uri]),
      ...['--size', String(SIZE), '--replicas', String(servers.length), '--connections', '1'],
      ...['--unix', join(path, 'nbd.sock'), '--state', folder.path],
    ],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, RDMAKIT_RUN: path, TEST_WRITES: String(writes) },
    },
  )
  onTestFinished(() => void child.kill('SIGKILL'))
  const exited = once(child, 'exit').then(([, signal]) => signal as NodeJS.Signals | null)
  const ready = new Promise<'ready'>((resolve) => {
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      if (/^ready /m.test(text)) resolve('ready')
    })
  })
  const outcome = await Promise.race([exited, ready])
  child.kill('SIGKILL')
  await exited
  return outcome
}

const resync = ({ engine }: Volume) => resyncReplicas(engine, (work) => withPageSocket(engine, 0, work))

describe('pages whose WRITE was open when the process died', () => {
  it('are the same on all replicas before a client sees them', async () => {
    for (let i = 0; i < 3; i++) await lend()
    const shape = { replicas: 3, backup: false }
    await leftInTheMiddle(shape)
    await using volume = await takeOver(shape)
    expect(volume.engine.leftClaimed).toEqual(PAGES)
    const [first, , last] = replicas(volume, 0)
    expect(last).not.toEqual(first)
    const warnings = vi.spyOn(process, 'emitWarning')
    await resync(volume)
    expect(warnings).not.toHaveBeenCalled()
    warnings.mockRestore()
    for (const page of PAGES) {
      const [read, ...others] = replicas(volume, page)
      for (const other of others) expect(other).toEqual(read)
    }
    // The lane is a client's again, and no checksum is in its way.
    const client = new Client(volume.engine.attachSocketpair(0))
    for (const page of PAGES)
      expect((await client.request(READ, page * PAGE, PAGE))?.data).toEqual(contents(page))
    client.close()
  })

  it('are in the backup, which does not believe what it has of them', async () => {
    await lend()
    const shape = { replicas: 1, backup: true }
    await leftInTheMiddle(shape)
    const halves = new Map<number, Buffer>()
    {
      await using volume = await takeOver(shape)
      for (const page of PAGES) halves.set(page, Buffer.from(replicas(volume, page)[0] as Uint8Array))
      await resync(volume)
      for (let slab = 0; slab < volume.engine.slabCount; slab++)
        expect(volume.engine.missingInBackup(slab)).toBe(0)
      await volume.leave()
    }
    // The server's contents are those of the file: the reader reads again.
    await servers[0]?.server.close()
    await using volume = await takeOver(shape)
    const client = new Client(volume.engine.attachSocketpair(0))
    for (const page of PAGES)
      expect((await client.request(READ, page * PAGE, PAGE))?.data).toEqual(halves.get(page))
    client.close()
  })

  it('stay errors where no copy is left, and the others are settled all the same', async () => {
    await lend()
    const shape = { replicas: 1, backup: false }
    await leftInTheMiddle(shape)
    await using volume = await takeOver(shape)
    volume.engine.dropReplica(0, 0, true)
    await resync(volume)
    const client = new Client(volume.engine.attachSocketpair(0))
    for (const page of PAGES) {
      const lost = page * PAGE < MIB
      expect((await client.request(READ, page * PAGE, PAGE))?.error).toBe(lost ? 5 : 0)
    }
    client.close()
  })

  // Starts the program three times: 2 s.
  it('are the same on all replicas before a client sees them, when the next processes die over that', async () => {
    for (let i = 0; i < 2; i++) await lend()
    const shape = { replicas: 2, backup: false }
    const copies = await leftInTheMiddle(shape)
    folder.close()
    const alike = () =>
      copies.filter(([read, other]) => read?.every((byte, at) => byte === other?.[at])).length
    expect(alike()).toBe(0)
    // Each goes on where the one before was killed, between its READ of a page and its WRITE.
    expect(await serveUntil(5)).toBe('SIGKILL')
    expect(alike()).toBe(5)
    expect(await serveUntil(6)).toBe('SIGKILL')
    expect(alike()).toBe(11)
    expect(await serveUntil(PAGES.length - 11)).toBe('ready')
    expect(alike()).toBe(PAGES.length)
    folder = StateFolder.open(folder.path)
    await using volume = await takeOver(shape)
    expect(volume.engine.leftClaimed).toEqual([])
  })

  it('are left to the next process by one that can read them and not write them', async () => {
    for (let i = 0; i < 2; i++) await lend()
    const shape = { replicas: 2, backup: false }
    await leftInTheMiddle(shape)
    {
      await using volume = await takeOver(shape, true)
      await expect(resync(volume)).rejects.toThrow(/page 0, which was being written .* cannot be written/)
      await volume.leave()
    }
    await using next = await takeOver(shape)
    expect(next.engine.leftClaimed).toEqual(PAGES)
  })

  it('ends with an error when the engine ends, and does not hang', async () => {
    await lend()
    const shape = { replicas: 1, backup: false }
    await leftInTheMiddle(shape)
    const volume = await takeOver(shape)
    // So slow that it cannot end before the engine does.
    volume.engine.setLimits(0, { bytes: 0, operations: 2 })
    const settled = resync(volume)
    const outcome = expect(settled).rejects.toThrow(/the engine/)
    await volume.leave()
    await outcome
    await using next = await takeOver(shape)
    expect(next.engine.leftClaimed.at(-1)).toBe(PAGES.at(-1))
  })
})
