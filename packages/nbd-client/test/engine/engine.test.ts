import { AsyncLocalStorage } from 'node:async_hooks'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { BlockEngine, type EngineEvents } from '../../src/engine/block-engine.js'
import { closeDescriptor, kernelDevice, protectProcess } from '../../src/kernel/kernel.js'
import { Client, DISCONNECT, FLUSH, MIB, READ, setup, socketPath, TRIM, WRITE } from '../helpers/fixture.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

const EINVAL = 22
const ENOSPC = 28
const EIO = 5

const page = (byte: number) => Buffer.alloc(4096, byte)

function nextEvent<Type extends keyof EngineEvents>(engine: BlockEngine, type: Type) {
  return new Promise<EngineEvents[Type]>((resolve) => {
    const stop = engine.on(type, (event) => {
      stop()
      resolve(event)
    })
  })
}

describe('an engine’s options', () => {
  it.each([
    ['a size that is no multiple of 4096', { size: 5000 }],
    ['no size', { size: 0 }],
    ['a slab size that is no power of two', { size: MIB, slabSize: 3 * MIB }],
    ['a slab size below 1 MiB', { size: MIB, slabSize: 4096 }],
    ['a name of 5,000 bytes', { size: MIB, exports: [{ name: 'n'.repeat(5000) }] }],
    ['a description of 5,000 bytes', { size: MIB, exports: [{ description: 'n'.repeat(5000) }] }],
    ['no export at all', { size: MIB, exports: [] }],
    ['two exports of one name', { size: MIB, exports: [{ name: 'a' }, { name: 'a' }] }],
    ['an export beyond the end', { size: MIB, exports: [{ offset: 4096, size: MIB }] }],
    ['an export within a page', { size: MIB, exports: [{ offset: 512 }] }],
    ['a minimum block size of 3', { size: MIB, minimumBlockSize: 3 }],
    ['a read-ahead that is no multiple of 64 KiB', { size: MIB, readAhead: 4096 }],
    ['a read-ahead of 2 MiB', { size: MIB, readAhead: 2 * MIB }],
  ])('refuses %s', (_, options) => {
    expect(() => new BlockEngine(options)).toThrow(expect.objectContaining({ code: 'EINVAL' }))
  })

  it.each([
    ['no credentials', {}],
    ['files that are missing', { sharedKeys: '/nonexistent' }],
  ])('refuses TLS with %s', (_, credentials) => {
    const tls = { mode: 'on' as const, ...credentials }
    expect(() => new BlockEngine({ size: MIB, tls })).toThrow(expect.objectContaining({ code: 'ENOKEY' }))
  })

  it('refuses an unknown wait mode', () => {
    const options = { size: MIB, waitMode: 'sometimes' as 'poll' }
    expect(() => new BlockEngine(options)).toThrow(/waitMode/)
  })

  it('counts slabs, the last one in part', async () => {
    await using engine = new BlockEngine({ size: 2 * MIB + 4096, slabSize: MIB })
    expect(engine.slabCount).toBe(3)
    expect(engine.exportFlags & 1).toBe(1)
  })

  it('keeps the page map in a file, one engine at a time', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'page-map-'))
    const pageMap = join(folder, 'map')
    try {
      await using engine = new BlockEngine({ size: MIB, pageMap })
      expect(statSync(pageMap).mode & 0o777).toBe(0o600)
      expect(() => new BlockEngine({ size: MIB, pageMap })).toThrow(
        expect.objectContaining({ code: 'EBUSY' }),
      )
      await engine.close()
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})

describe('what an engine is given', () => {
  it('wants handles of @rdmakit/verbs, of the right kind', async () => {
    await using made = await setup()
    const { engine, slabs } = made
    const resources = (handle: object) => ({
      completionQueue: { handle },
      queuePairs: [],
      memoryRegions: [slabs],
    })
    expect(() => engine.addLane(resources({}))).toThrow(/no handle of @rdmakit\/verbs/)
    expect(() => engine.addLane(resources(slabs.handle))).toThrow(/another kind/)
    expect(engine.statistics().lanes).toEqual([])
  })

  it('maps a slab once', async () => {
    await using engine = new BlockEngine({ size: 2 * MIB, slabSize: MIB })
    const place = { server: 0, remoteKey: 1, address: 0n }
    engine.mapSlab(0, place)
    expect(() => engine.mapSlab(0, place)).toThrow(expect.objectContaining({ code: 'EEXIST' }))
    expect(() => engine.mapSlab(2, place)).toThrow(expect.objectContaining({ code: 'EINVAL' }))
    expect(() => engine.mapSlab(1, { ...place, server: 1024 })).toThrow(
      expect.objectContaining({ code: 'EINVAL' }),
    )
    expect(() => engine.mapSlab(1, { ...place, remoteKey: -1 })).toThrow(/remoteKey/)
    engine.replaceSlab(0, { ...place, server: 1 }, 'kept')
  })

  it('connects a further server by a queue pair only', async () => {
    await using made = await setup()
    const { engine, slabs } = made
    const lane = await made.addLane()
    const queuePair = { handle: slabs.handle }
    expect(() => engine.connectServer(lane, 0, queuePair)).toThrow(/another kind/)
  })
})

describe('a lane', () => {
  it('writes pages to the slab and reads them back', async () => {
    await using made = await setup()
    const { engine, slabs } = made
    const client = new Client(engine.attachSocketpair(await made.addLane()))
    expect(await client.request(WRITE, MIB + 8192, 4096, page(0x5a))).toMatchObject({ error: 0 })
    expect(Buffer.from(slabs.buffer, MIB + 8192, 4096).equals(page(0x5a))).toBe(true)
    const { data } = (await client.request(READ, MIB + 8192, 4096)) ?? {}
    expect(data?.equals(page(0x5a))).toBe(true)
    expect(await client.request(FLUSH, 0, 0)).toMatchObject({ error: 0 })
    client.close()
  })

  it.each([
    ['fetches ahead of a client that reads in order', {}, 0.8],
    ['fetches nothing ahead when it is told so', { readAhead: 0 }, 0],
  ])('%s', async (_, options, share) => {
    await using made = await setup(options)
    const client = new Client(made.engine.attachSocketpair(await made.addLane()))
    for (let at = 0; at < MIB; at += 4096) await client.request(WRITE, at, 4096, page(1 + (at >> 12)))
    for (let at = 0; at < MIB; at += 4096)
      expect((await client.request(READ, at, 4096))?.data.equals(page(1 + (at >> 12)))).toBe(true)
    const [lane] = made.engine.statistics().lanes
    expect(lane?.bytesFromReadAhead).toBeGreaterThanOrEqual(share * MIB)
    expect((lane?.pagesReadAhead ?? 0) * 4096).toBeGreaterThanOrEqual(lane?.bytesFromReadAhead ?? 0)
    expect(lane?.pagesReadAhead === 0).toBe(share === 0)
    client.close()
  })

  it('reads what was never written as zeros, without network and whatever the slab holds', async () => {
    await using made = await setup()
    new Uint8Array(made.slabs.buffer).fill(0xdb)
    const client = new Client(made.engine.attachSocketpair(await made.addLane()))
    expect((await client.request(READ, 0, 2 * MIB))?.data.every((byte) => byte === 0)).toBe(true)
    expect(made.engine.statistics().lanes[0]).toMatchObject({ rdmaReads: 0, pagesReadWithoutNetwork: 512 })
    await client.request(WRITE, 100, 1, Uint8Array.of(7))
    const { data } = (await client.request(READ, 0, 4096)) ?? {}
    expect(data?.[100]).toBe(7)
    expect(data?.filter((byte) => byte !== 0).length).toBe(1)
    client.close()
  })

  it('forgets trimmed pages', async () => {
    await using made = await setup()
    const client = new Client(made.engine.attachSocketpair(await made.addLane()))
    await client.request(WRITE, 0, 8192, Buffer.alloc(8192, 1))
    expect(made.engine.statistics().writtenPages).toBe(2)
    expect(await client.request(TRIM, 0, 4096)).toMatchObject({ error: 0 })
    expect(made.engine.statistics().writtenPages).toBe(1)
    expect((await client.request(READ, 0, 4096))?.data.equals(page(0))).toBe(true)
    client.close()
  })

  it('answers what is out of range with the error of the specification, and goes on', async () => {
    await using made = await setup()
    const client = new Client(made.engine.attachSocketpair(await made.addLane()))
    expect(await client.request(READ, 4 * MIB, 4096)).toMatchObject({ error: EINVAL })
    expect(await client.request(WRITE, 4 * MIB, 4096, page(1))).toMatchObject({ error: ENOSPC })
    expect(await client.request(READ, 0, 4096)).toMatchObject({ error: 0 })
    client.close()
  })

  it('serves one connection at a time and then the next', async () => {
    await using made = await setup()
    const { engine } = made
    const lane = await made.addLane()
    const first = new Client(engine.attachSocketpair(lane))
    await first.request(WRITE, 0, 4096, page(9))
    expect(() => engine.attachSocketpair(lane)).toThrow(expect.objectContaining({ code: 'EBUSY' }))
    expect(() => engine.attachSocketpair(lane + 1)).toThrow(expect.objectContaining({ code: 'EINVAL' }))
    const closed = nextEvent(engine, 'connectionClosed')
    const idle = nextEvent(engine, 'laneIdle')
    expect(await first.request(DISCONNECT, 0, 0)).toBeUndefined()
    expect(await closed).toMatchObject({ lane, reason: 'disconnected by the client' })
    await idle
    const second = new Client(engine.attachSocketpair(lane))
    expect((await second.request(READ, 0, 4096))?.data.equals(page(9))).toBe(true)
    second.close()
  })
})

describe('a server that fails', () => {
  it('is reported once, on every lane, and its written pages read as EIO', async () => {
    await using made = await setup()
    const { engine } = made
    const clients = [await made.addLane(), await made.addLane()].map(
      (lane) => new Client(engine.attachSocketpair(lane)),
    )
    for (const client of clients) await client.request(WRITE, 0, 4096, page(3))
    const failures: EngineEvents[keyof EngineEvents][] = []
    engine.on('serverFailed', (event) => failures.push(event))
    const failed = nextEvent(engine, 'serverFailed')
    made.dropServer()
    for (const client of clients) {
      expect(await client.request(READ, 0, 4096)).toMatchObject({ error: EIO })
      expect(await client.request(READ, MIB, 4096)).toMatchObject({ error: 0 })
      expect(await client.request(WRITE, MIB, 4096, page(1))).toMatchObject({ error: EIO })
    }
    expect(await failed).toMatchObject({ server: 0 })
    expect(failures.length).toBe(1)
    expect(engine.statistics().failedServers).toEqual([0])
    for (const client of clients) client.close()
  })

  it('may be declared failed by JavaScript', async () => {
    await using made = await setup()
    const { engine } = made
    const client = new Client(engine.attachSocketpair(await made.addLane()))
    await client.request(WRITE, 0, 4096, page(3))
    const failed = nextEvent(engine, 'serverFailed')
    engine.failServer(0, 'heartbeat lost')
    engine.failServer(0, 'again')
    expect(await failed).toEqual({ type: 'serverFailed', server: 0, lane: -1, reason: 'heartbeat lost' })
    expect(await client.request(READ, 0, 4096)).toMatchObject({ error: EIO })
    client.close()
  })

  it('leaves lost pages that read as EIO at their new place until they are written', async () => {
    await using made = await setup()
    const { engine, slabs } = made
    const client = new Client(engine.attachSocketpair(await made.addLane()))
    await client.request(WRITE, 0, 4096, page(3))
    engine.replaceSlab(
      0,
      { server: 0, remoteKey: slabs.remoteKey, address: slabs.address + BigInt(3 * MIB) },
      'lost',
    )
    expect(engine.statistics().lostPages).toBe(1)
    expect(await client.request(READ, 0, 4096)).toMatchObject({ error: EIO })
    expect(await client.request(WRITE, 0, 4096, page(4))).toMatchObject({ error: 0 })
    expect((await client.request(READ, 0, 4096))?.data.equals(page(4))).toBe(true)
    client.close()
  })
})

describe('close', () => {
  it('ends connections and removes the socket, and may be called twice', async () => {
    await using made = await setup()
    const { engine } = made
    const path = socketPath()
    engine.listenUnix(path)
    expect(statSync(path).mode & 0o777).toBe(0o600)
    const client = new Client(engine.attachSocketpair(await made.addLane()))
    await client.request(WRITE, 0, 4096, page(3))
    await Promise.all([engine.close(), engine.close()])
    expect(await client.request(READ, 0, 4096)).toBeUndefined()
    expect(existsSync(path)).toBe(false)
    expect(engine.statistics().lanes[0]).toMatchObject({ state: 'stopped', writes: 1 })
    expect(() => engine.attachSocketpair(0)).toThrow(expect.objectContaining({ code: 'ESHUTDOWN' }))
    await expect(made.addLane()).rejects.toMatchObject({ code: 'ESHUTDOWN' })
  })
})

describe('listening', () => {
  it('refuses a path that is no socket, and one where a server listens', async () => {
    await using engine = new BlockEngine({ size: MIB })
    const path = socketPath()
    writeFileSync(path, '')
    expect(() => engine.listenUnix(path)).toThrow(expect.objectContaining({ code: 'EEXIST' }))
    rmSync(path)
    engine.listenUnix(path)
    await using other = new BlockEngine({ size: MIB })
    expect(() => other.listenUnix(path)).toThrow(expect.objectContaining({ code: 'EADDRINUSE' }))
  })

  it('resolves port 0', async () => {
    await using engine = new BlockEngine({ size: MIB })
    const { host, port } = engine.listenTcp('127.0.0.1', 0)
    expect(host).toBe('127.0.0.1')
    expect(port).toBeGreaterThan(0)
    expect(() => engine.listenTcp('127.0.0.1', port)).toThrow(expect.objectContaining({ code: 'EADDRINUSE' }))
  })

  it('takes an address, and lets clients wait there until it accepts them', async () => {
    await using engine = new BlockEngine({ size: MIB })
    const path = socketPath()
    engine.bindUnix(path)
    expect(() => engine.bindUnix(path)).toThrow(expect.objectContaining({ code: 'EADDRINUSE' }))
    const socket = connect(path)
    await once(socket, 'connect')
    expect(engine.statistics().handshakes).toBe(0)
    engine.acceptClients()
    const [greeting] = (await once(socket, 'data')) as [Buffer]
    expect(greeting.subarray(0, 8).toString()).toBe('NBDMAGIC')
    socket.destroy()
    await engine.close()
    expect(() => engine.bindUnix(path)).toThrow(expect.objectContaining({ code: 'ESHUTDOWN' }))
  })

  it('reports a client that speaks no NBD', async () => {
    await using engine = new BlockEngine({ size: MIB })
    const { port } = engine.listenTcp('127.0.0.1', 0)
    const refused = nextEvent(engine, 'handshakeRefused')
    const socket = connect(port, '127.0.0.1')
    socket.on('error', () => {}) // reset is as good as closed
    socket.write('GET / HTTP/1.1\r\n\r\n')
    expect(await refused).toMatchObject({ reason: 'unknown client flags' })
    socket.destroy()
    expect(engine.statistics()).toMatchObject({ handshakes: 1, handshakesRefused: 1 })
  })
})

describe('the process and the kernel', () => {
  it('says of each protection whether it was granted', () => {
    const protections = protectProcess()
    expect(protections.map(({ name }) => name)).toEqual(['mlock', 'oom_score_adj -1000', 'PR_SET_IO_FLUSHER'])
    for (const { granted, reason } of protections) expect(reason === '').toBe(granted)
  })

  it('answers the kernel’s status, or says that the module is missing', () => {
    try {
      expect(Array.isArray(kernelDevice.status())).toBe(true)
    } catch (failure) {
      expect(failure).toMatchObject({
        code: expect.stringMatching(/^(ENOENT|EPERM)$/),
        syscall: 'nbd status',
      })
    }
  })

  it('tells of events in the context in which the engine was made', async () => {
    const storage = new AsyncLocalStorage<string>()
    await using made = await storage.run('own', () => setup())
    const told = new Promise((resolve) => {
      made.engine.on('laneIdle', () => resolve(storage.getStore()))
    })
    closeDescriptor(made.engine.attachSocketpair(await made.addLane()))
    expect(await told).toBe('own')
  })

  it('closes a descriptor for good', async () => {
    await using made = await setup()
    const idle = nextEvent(made.engine, 'laneIdle')
    const descriptor = made.engine.attachSocketpair(await made.addLane())
    expect(existsSync(`/proc/self/fd/${descriptor}`)).toBe(true)
    closeDescriptor(descriptor)
    expect(await idle).toMatchObject({ type: 'laneIdle' })
    await made[Symbol.asyncDispose]()
    expect(existsSync(`/proc/self/fd/${descriptor}`)).toBe(false)
  })
})

it('does not wait for ever for operations that are under way', async () => {
  await using engine = new BlockEngine({ size: MIB, slabSize: MIB, operationTimeout: 1_000 })
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  onTestFinished(() => void vi.useRealTimers())
  // The engine's answer arrives in a later turn of this process.
  const waiting = engine.synchronize()
  vi.advanceTimersByTime(32_000)
  await expect(waiting).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  await engine.synchronize()
})

it('a page map is of one size, also where the files of two sizes are as long', async () => {
  const folder = temporaryFolder()
  const pageMap = join(folder, 'pages.map')
  await new BlockEngine({ size: MIB, slabSize: MIB, pageMap }).close()
  const before = statSync(pageMap).size
  expect(() => new BlockEngine({ size: 2 * MIB, slabSize: MIB, pageMap })).toThrow(
    expect.objectContaining({ code: 'EINVAL' }),
  )
  expect(statSync(pageMap).size).toBe(before)
  await new BlockEngine({ size: MIB, slabSize: MIB, pageMap }).close()
})
