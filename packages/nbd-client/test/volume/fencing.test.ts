// Two processes that have one state folder, or copies of it: one goes on with the volume, and the other ends nothing of
// it. docs/page-service/fencing.md
import { cpSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { EXIT } from '@rdmakit/operator-kit'
import { FencedError, type KeptServer } from '@rdmakit/remote-volume'
import { endKept, LaneConnector } from '@rdmakit/remote-volume/internal'
import { nextTakeOver, type SwapServer, SwapServerSession, type TakeOver } from '@rdmakit/swap-server'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { ADDRESSES, serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { control } from '../../../swap-server/src/protocol/messages.js'
import { Volume } from '../../src/engine/block-volume.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import type { KeptVolume } from '../../src/upgrade/volume-json.js'
import { VolumeKeeper } from '../../src/upgrade/volume-keeper.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

const SIZE = 4 * MIB

interface Shape {
  readonly replicas: number
  /** milliseconds */
  readonly reconnect: number
}

/** What a process has: a state folder, and the volume once it is up. */
class Owner {
  readonly folder: StateFolder
  readonly said: string[] = []
  readonly #uris: readonly string[]
  readonly #shape: Shape

  constructor(uris: readonly string[], shape: Shape, path = join(temporaryFolder(), 'state')) {
    this.folder = StateFolder.open(path)
    this.#uris = uris
    this.#shape = shape
    onTestFinished(() => this.folder.close())
  }

  /** Another machine's, with what is in this one's folder now. */
  copy(): Owner {
    const path = join(temporaryFolder(), 'state')
    cpSync(this.folder.path, path, { recursive: true })
    return new Owner(this.#uris, this.#shape, path)
  }

  get kept(): KeptVolume | undefined {
    return this.folder.read()
  }

  get json(): string {
    return readFileSync(join(this.folder.path, 'volume.json'), 'utf8')
  }

  async open(): Promise<Volume> {
    const { kept } = this
    const place = { size: SIZE, replicas: this.#shape.replicas }
    const keeper = new VolumeKeeper(this.folder, place, kept)
    const options = {
      ...place,
      servers: this.#uris.map((uri) => [uri]),
      lanes: 1,
      reconnect: this.#shape.reconnect,
      progress: (step: string) => void this.said.push(step),
      ...keeper.options(60_000),
    }
    if (kept === undefined) return ending(await Volume.open(options))
    const { volume } = await Volume.takeOver(options, kept)
    volume.start()
    return ending(volume)
  }
}

function ending(volume: Volume): Volume {
  onTestFinished(() => volume.leave())
  return volume
}

async function lend(count: number, wrap: (server: SwapServer) => void = () => {}) {
  const made = await Promise.all(Array.from({ length: count }, () => serve(8, ADDRESSES.iwarp())))
  for (const { server } of made) wrap(server)
  return made
}

const clients = new WeakMap<Volume, Client>()

/** The one that the volume has: its lane serves it until it is idle. */
function clientOf(volume: Volume): Client {
  const client = clients.get(volume) ?? new Client(volume.engine.attachSocketpair(0))
  clients.set(volume, client)
  return client
}

async function holds(volume: Volume, byte: number): Promise<void> {
  const { error, data } = (await clientOf(volume).request(READ, 0, SIZE)) ?? {}
  expect(error).toBe(0)
  expect(data?.equals(Buffer.alloc(SIZE, byte))).toBe(true)
}

async function write(volume: Volume, byte: number): Promise<void> {
  const answer = await clientOf(volume).request(WRITE, 0, SIZE, Buffer.alloc(SIZE, byte))
  expect(answer?.error).toBe(0)
}

const SHAPES: [string, Shape][] = [
  ['1 replica', { replicas: 1, reconnect: 30_000 }],
  ['2 replicas', { replicas: 2, reconnect: 30_000 }],
  ['1 replica, and nothing is waited for', { replicas: 1, reconnect: 0 }],
]

describe.each(SHAPES)('of two that have a state folder, with %s,', (_, shape) => {
  it('the one that was there before hears of it, stops, and ends nothing', async () => {
    const servers = await lend(2)
    const first = new Owner(
      servers.map(({ uri }) => uri),
      shape,
    )
    const old = await first.open()
    await write(old, 7)
    const second = first.copy()
    const told = new Promise<FencedError>((resolve) => old.onFenced(resolve))
    // As a device does before it is ended.
    old.onServerFailure(() => {
      if (old.lost) void old.askFenced()
    })
    const volume = await second.open()
    expect(await told).toMatchObject({
      status: EXIT.fenced,
      message: expect.stringMatching(/another process has taken the volume over: .*this process stops/),
    })
    expect(old.fenced).toBe(await told)
    // A later listener is called too.
    expect(await new Promise((resolve) => old.onFenced(resolve))).toBe(await told)
    const json = first.json
    const calls = [vi.spyOn(SwapServerSession, 'resume'), vi.spyOn(SwapServerSession, 'open')]
    onTestFinished(() => void vi.restoreAllMocks())
    const goodbyes = servers.map(({ server }) => server.sessions)
    await old.close()
    for (const call of calls) expect(call).not.toHaveBeenCalled()
    expect(first.json).toBe(json)
    expect(servers.map(({ server }) => server.sessions)).toEqual(goodbyes)
    await holds(volume, 7)
    await write(volume, 8)
    await holds(volume, 8)
    expect(volume.slabs).toMatchObject({ mapped: 4, lost: 0 })
    expect(volume.fenced).toBeUndefined()
  })

  it('the one that loses the sessions while it connects its lanes is refused, too', async () => {
    const servers = await lend(2)
    const first = new Owner(
      servers.map(({ uri }) => uri),
      shape,
    )
    const begun = await first.open()
    await write(begun, 7)
    await begun.leave()
    const second = first.copy()
    let winner: Volume | undefined
    const { open } = LaneConnector
    vi.spyOn(LaneConnector, 'open').mockImplementationOnce(async (...given) => {
      // With equal numbers either may win, and then its next one is higher.
      winner = await second.open().catch(() => second.open())
      return await open.call(LaneConnector, ...given)
    })
    onTestFinished(() => void vi.restoreAllMocks())
    await expect(first.open()).rejects.toBeInstanceOf(FencedError)
    if (winner === undefined) throw new Error('no lane was made')
    await holds(winner, 7)
    expect(winner.fenced).toBeUndefined()
  })

  it('the one that comes from an older copy is refused, and the other one does not notice', async () => {
    const servers = await lend(2)
    const first = new Owner(
      servers.map(({ uri }) => uri),
      shape,
    )
    const begun = await first.open()
    await write(begun, 7)
    const late = first.copy()
    for (let time = 0; time < 2; time++) {
      await begun.leave()
      await (await first.open()).leave()
    }
    const volume = await first.open()
    expect(first.kept?.takeOver?.number).toBe(4)
    await expect(late.open()).rejects.toBeInstanceOf(FencedError)
    // It has taken its number, and nothing else.
    expect(late.kept?.takeOver?.number).toBe(2)
    await holds(volume, 7)
    expect(volume.servers.every(({ failure }) => failure === undefined)).toBe(true)
  })
})

it('a folder whose device is gone does not give back what a process with a copy uses', async () => {
  const servers = await lend(2)
  const first = new Owner(
    servers.map(({ uri }) => uri),
    { replicas: 1, reconnect: 30_000 },
  )
  const volume = await first.open()
  await write(volume, 7)
  const second = first.copy()
  const said: string[] = []
  await endKept(second.kept as KeptVolume, {}, (step) => said.push(step))
  expect(said).toHaveLength(2)
  for (const line of said) expect(line).toMatch(/ keeps the volume's memory: a client has the session/)
  await holds(volume, 7)
  await volume.leave()
  await eventually(() => servers.every(({ server }) => server.lingeringSessions === 1))
  await endKept(second.kept as KeptVolume, {}, (step) => said.push(step))
  expect(said).toHaveLength(2)
  await eventually(() => servers.every(({ server }) => server.store.free === 8))
})

it('a process that hears of it from one server says goodbye to none', async () => {
  const servers = await lend(2)
  const owner = new Owner(
    servers.map(({ uri }) => uri),
    { replicas: 2, reconnect: 30_000 },
  )
  const volume = await owner.open()
  await write(volume, 7)
  const told = new Promise<FencedError>((resolve) => volume.onFenced(resolve))
  // The other one has not come to the second server yet.
  const [first] = owner.kept?.servers ?? []
  const { uris, identity } = first as KeptServer
  const takeOver = nextTakeOver(owner.kept?.takeOver as TakeOver)
  const taker = await SwapServerSession.resume(uris, identity, { linger: 60_000, takeOver })
  onTestFinished(() => taker.leave())
  await told
  await volume.close()
  await eventually(() => servers[1]?.server.lingeringSessions === 1)
  for (const { server } of servers) expect(server.store.free).toBeLessThanOrEqual(4)
})

describe('a take-over number', () => {
  const place = { size: SIZE, replicas: 1 }

  it('is on disk before any server hears of it', async () => {
    const [{ uri }] = (await lend(1)) as [Awaited<ReturnType<typeof serve>>]
    const owner = new Owner([uri], { replicas: 1, reconnect: 0 })
    await (await owner.open()).leave()
    const numbers: unknown[] = []
    const resume = SwapServerSession.resume.bind(SwapServerSession)
    vi.spyOn(SwapServerSession, 'resume').mockImplementation((uris, identity, options) => {
      numbers.push([owner.kept?.takeOver, options?.takeOver])
      return resume(uris, identity, options)
    })
    onTestFinished(() => void vi.restoreAllMocks())
    await (await owner.open()).leave()
    const { takeOver } = owner.kept as KeptVolume
    expect(takeOver?.number).toBe(2)
    expect(numbers).toEqual([[takeOver, takeOver]])
  })

  it('is not raised when the maps are not in order', async () => {
    const [{ uri }] = (await lend(1)) as [Awaited<ReturnType<typeof serve>>]
    const owner = new Owner([uri], { replicas: 1, reconnect: 0 })
    await (await owner.open()).leave()
    const broken = owner.copy()
    const { json } = broken
    cpSync('/dev/null', broken.folder.pageMap)
    await expect(broken.open()).rejects.toThrow(/pages\.map is missing or empty/)
    expect(broken.json).toBe(json)
  })

  it('is 0 in a folder of a version before, which a hand-over leaves readable for that', async () => {
    const [{ uri }] = (await lend(1)) as [Awaited<ReturnType<typeof serve>>]
    const owner = new Owner([uri], { replicas: 1, reconnect: 0 })
    await (await owner.open()).leave()
    const { takeOver: _, ...before } = owner.kept as KeptVolume
    owner.folder.write(before)
    const { json } = owner
    expect(new VolumeKeeper(owner.folder, place, before).raise(true).number).toBe(0)
    expect(owner.json).toBe(json)
    expect(new VolumeKeeper(owner.folder, place, before).raise().number).toBe(1)
    // The one that takes back, of this version, is above what its successor has raised.
    const successor = new VolumeKeeper(owner.folder, place, owner.kept).raise(true)
    const again = new VolumeKeeper(owner.folder, place, owner.kept).raise()
    expect([successor.number, again.number, owner.kept?.takeOver]).toEqual([2, 3, again])
  })
})

/** A server that was made before there were take-over numbers: it does not read them, and says none. */
function beforeNumbers({ listeners }: SwapServer): void {
  const admit = listeners.admit.bind(listeners)
  listeners.admit = (connection, arrival) => {
    const old: typeof connection = {
      context: connection.context,
      peerUri: connection.peerUri,
      channelBinding: connection.channelBinding,
      memory: connection.memory,
      closed: connection.closed,
      request: (bytes, options) => connection.request(bytes, options),
      close: () => connection.close(),
      handle: (answer) =>
        connection.handle(async (bytes) => {
          const request = control.Request.decode(bytes.data)
          if (request.hello) request.hello.takeOver = null
          const known = control.Request.encode(request).finish()
          const response = control.Response.decode(await answer({ data: known }))
          if (response.hello) response.hello.takeOver = null
          return control.Response.encode(response).finish()
        }),
    }
    admit(old, arrival)
  }
}

it('a server without numbers is named, and works as before', async () => {
  const servers = await lend(2, beforeNumbers)
  const owner = new Owner(
    servers.map(({ uri }) => uri),
    { replicas: 1, reconnect: 30_000 },
  )
  const begun = await owner.open()
  await write(begun, 7)
  await begun.leave()
  const volume = await owner.open()
  for (const { uri } of servers)
    expect(
      owner.said.filter((line) => line.startsWith(`warning: ${uri} does not compare take-over`)),
    ).toHaveLength(2)
  await holds(volume, 7)
  volume.engine.failServer(0, 'the test said so')
  await holds(volume, 7)
  expect(volume.slabs.lost).toBe(0)
})
