import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { growth } from '../../../test/growth.js'
import {
  ConnectionId,
  type Context,
  keptMemory,
  listDevices,
  openDevice,
  providerProblem,
  UsageError,
  VerbsError,
} from '../src/index.js'

describe('devices', () => {
  it('lists the software iWARP device on every machine', () => {
    expect(listDevices()).toContainEqual(
      expect.objectContaining({ name: 'iwarp0', provider: 'iwarp', transport: 'iWARP' }),
    )
    expect(providerProblem('iwarp')).toBeUndefined()
  })

  it('names device, verb and errno when there is no such device', () => {
    expect(() => openDevice('nosuch0', 'iwarp')).toThrow(
      expect.objectContaining({ code: 'ENODEV', verb: 'ibv_open_device', object: 'device nosuch0' }),
    )
  })
})

describe('resources', () => {
  let context: Context
  beforeEach(() => {
    context = openDevice('iwarp0', 'iwarp')
  })
  afterEach(() => context.close())

  it('answers device and port queries', () => {
    expect(context.queryDevice().max_qp).toBeGreaterThan(0)
    expect(context.queryPort(1).state).toBe(4) // IBV_PORT_ACTIVE
    expect(() => context.queryPort(9)).toThrow(VerbsError)
  })

  it('gives a memory region one zeroed ArrayBuffer, which keeps its bytes when the region is closed', async () => {
    const region = await context.allocateProtectionDomain().allocateMemoryRegion(10_000, ['remote-write'])
    expect(region.buffer).toBe(region.buffer)
    expect(region.buffer.byteLength).toBe(10_000)
    const view = new Uint8Array(region.buffer)
    expect(view.every((byte) => byte === 0)).toBe(true)
    view.fill(1)
    region.close()
    expect(view.every((byte) => byte === 1)).toBe(true)
    expect(() => region.handle).toThrow(/is closed/)
  })

  it('that is closed twice leaves the next of the same device alone, which connections have', async () => {
    context.close()
    const next = openDevice('iwarp0', 'iwarp')
    context.close()
    const id = await ConnectionId.resolve('iwarp://127.0.0.1:1')
    expect(id.context).toBe(next)
    id.close()
    next.close()
  })

  it('keeps nothing of those who have listened to its events', async () => {
    const some = async () => {
      for (let i = 0; i < 3000; i++) {
        context.asyncEvents.subscribe().unsubscribe()
        // What native code lets go of is gone in a later turn.
        if (i % 100 === 0) await new Promise(setImmediate)
      }
    }
    setFlagsFromString('--expose-gc')
    const collect = runInNewContext('gc') as () => void
    const heap = async () => {
      for (let i = 0; i < 3; i++) {
        collect()
        await new Promise(setImmediate)
      }
      return process.memoryUsage().heapUsed
    }
    await some()
    const limit = 300_000
    expect(await growth(heap, some, limit)).toBeLessThan(limit)
  })

  it('closes children with their parent, and closing twice is fine', async () => {
    const protectionDomain = context.allocateProtectionDomain()
    const region = await protectionDomain.allocateMemoryRegion(4096)
    protectionDomain.close()
    protectionDomain.close()
    expect(region.closed).toBe(true)
  })

  it.each([0, -1, 1.5, Number.NaN, 2 ** 41])('refuses a region of %d bytes', async (length) => {
    await expect(context.allocateProtectionDomain().allocateMemoryRegion(length)).rejects.toThrow(UsageError)
  })

  it('says ENOMEM for more memory than there is', async () => {
    await expect(context.allocateProtectionDomain().allocateMemoryRegion(2 ** 40)).rejects.toMatchObject({
      code: 'ENOMEM',
    })
  })

  it('refuses a completion queue without entries', () => {
    expect(() => context.createCompletionQueue({ entries: 0 })).toThrow(UsageError)
  })

  it('refuses to wait on a queue without a channel', async () => {
    await expect(context.createCompletionQueue({ entries: 1 }).wait()).rejects.toThrow(
      /no completion channel/,
    )
  })

  it('frees 200 regions of 8 MiB one after the other without growing but for what is kept', async () => {
    const protectionDomain = context.allocateProtectionDomain()
    let most = 0
    const many = async () => {
      for (let i = 0; i < 200; i++) {
        const region = await protectionDomain.allocateMemoryRegion(8 * 2 ** 20)
        new Uint8Array(region.buffer).fill(i)
        region.close()
        most = Math.max(most, keptMemory().bytes)
      }
    }
    const limit = 50 * 2 ** 20
    const notKept = () => process.memoryUsage().rss - keptMemory().bytes
    expect(await growth(notKept, many, limit)).toBeLessThan(limit)
    expect(most).toBeLessThanOrEqual(256 * 2 ** 20)
  })
})
