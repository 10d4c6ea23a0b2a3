import { describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import {
  completions,
  connectedPair,
  expectUnsupported,
  itRequires,
  LISTEN_URI,
  openContext,
  pattern,
  unsupported,
} from './pair.js'

describe(`memory regions on ${LISTEN_URI}`, () => {
  it("a caller's ArrayBuffer is read and written by the device, and stays the caller's", async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const own = pattern(5000)
    const region = client.protectionDomain.registerMemoryRegion(own.subarray(1000, 3000), ['local-write'])
    expect(region.length).toBe(2000)
    client.queuePair.postSend({
      opcode: 'rdma-write',
      data: [{ region }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region, offset: 1000, length: 1000 }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    const wanted = pattern(5000)
    wanted.copyWithin(2000, 1000, 2000)
    expect(Buffer.compare(own, wanted)).toBe(0)
    region.close()
    expect(own.length).toBe(5000)
  })

  it("a caller's memory is registered and taken back off the JavaScript thread", async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const own = pattern(5000)
    const region = await client.protectionDomain.registerMemoryRegionAsync(own.subarray(1000, 3000))
    const write = {
      opcode: 'rdma-write',
      data: [{ region }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    } as const
    client.queuePair.postSend(write)
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    // Over iWARP it may be on its way still.
    await eventually(() => Buffer.compare(server.bytes.subarray(0, 2000), own.subarray(1000, 3000)) === 0)
    const closing = region.closeAsync()
    expect(region.closed).toBe(true)
    expect(() => client.queuePair.postSend(write)).toThrow(/is closed/)
    await closing
    await eventually(() => region.destroyed)
    await region.closeAsync()
    region.close()
  })

  it('a domain that is closed while memory is registered keeps none of it', async () => {
    const device = await openContext()
    const domain = device.context.allocateProtectionDomain()
    const made = domain.registerMemoryRegionAsync(new ArrayBuffer(2 ** 20))
    domain.close()
    await expect(made).rejects.toThrow(/was closed meanwhile/)
    await eventually(() => domain.destroyed)
    device[Symbol.dispose]()
  })

  it("a region with write access through a caller's memory is reached by the peer", async (test) => {
    using pair = await connectedPair()
    const { client, server } = pair
    const own = new Uint8Array(10_000)
    const region = server.protectionDomain.registerMemoryRegion(own, ['remote-write', 'remote-read'])
    client.bytes.set(pattern(10_000))
    client.queuePair.postSend({
      opcode: 'rdma-write',
      data: [{ region: client.region, length: 10_000 }],
      remoteAddress: region.address,
      remoteKey: region.remoteKey,
    })
    const [written] = await completions(client.completionQueue, 1)
    if (written?.status === 'remote-operation-error') {
      // Over shm the kernel decides whether one process may reach the plain memory of another (Yama).
      expect(written.vendorError).toBe(1)
      unsupported(test, 'the kernel forbids process_vm_writev')
      return
    }
    expect(written?.status).toBe('success')
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region: client.region, length: 1 }],
      remoteAddress: region.address,
      remoteKey: region.remoteKey,
    })
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    expect(Buffer.compare(own, pattern(10_000))).toBe(0)
  })

  it.each([
    ['no huge pages', { hugePages: 'none' }],
    ['transparent huge pages', { hugePages: 'transparent' }],
    ['a NUMA node', { numaNode: 0 }],
    ['locked memory', { locked: true }],
    ['a memfd', { memfd: true }],
    ['pages as they are used', { populated: false }],
  ] as const)('memory with %s works like any other', async (_name, options) => {
    using pair = await connectedPair()
    const { client, server } = pair
    const region = await client.protectionDomain.allocateMemoryRegion(3_000_000, ['local-write'], options)
    const bytes = new Uint8Array(region.buffer)
    expect(bytes.every((byte) => byte === 0)).toBe(true)
    bytes.set(pattern(100_000), 2_900_000)
    client.queuePair.postSend({
      opcode: 'rdma-write',
      data: [{ region, offset: 2_900_000 }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region, length: 100_000 }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    await completions(client.completionQueue, 1)
    expect(Buffer.compare(bytes.subarray(0, 100_000), pattern(100_000))).toBe(0)
  })

  it('huge pages that are not reserved, or that peers could not map, are refused', async () => {
    using device = await openContext()
    using protectionDomain = device.context.allocateProtectionDomain()
    // No machine that runs this has a pool of 1 GiB pages; over shm no peer would map them.
    await expect(
      protectionDomain.allocateMemoryRegion(2 ** 30, ['local-write'], { hugePages: '1GiB' }),
    ).rejects.toMatchObject({ code: expect.stringMatching(/^(ENOMEM|EOPNOTSUPP)$/) })
  })

  it('a NUMA node that does not exist is refused', async () => {
    using device = await openContext()
    using protectionDomain = device.context.allocateProtectionDomain()
    await expect(
      protectionDomain.allocateMemoryRegion(4096, ['local-write'], { numaNode: 1000 }),
    ).rejects.toMatchObject({ code: 'EINVAL' })
  })

  itRequires(
    'reregister',
    'a region that is re-registered has other rights',
    async () => {
      using pair = await connectedPair()
      const { client, server } = pair
      server.region.reregister({ access: ['remote-read'] })
      server.bytes.set(pattern(100))
      client.queuePair.postSend({
        opcode: 'rdma-read',
        data: [{ region: client.region, length: 100 }],
        remoteAddress: server.region.address,
        remoteKey: server.region.remoteKey,
      })
      expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      expect(Buffer.compare(client.bytes.subarray(0, 100), pattern(100))).toBe(0)
      client.queuePair.postSend(
        {
          opcode: 'rdma-write',
          signaled: false,
          data: [{ region: client.region, length: 100 }],
          remoteAddress: server.region.address + 200n,
          remoteKey: server.region.remoteKey,
        },
        {
          opcode: 'rdma-read',
          data: [{ region: client.region, length: 1 }],
          remoteAddress: server.region.address,
          remoteKey: server.region.remoteKey,
        },
      )
      expect((await completions(client.completionQueue, 1))[0]?.status).not.toBe('success')
      expect(server.bytes.subarray(200, 300).every((byte) => byte === 0)).toBe(true)
    },
    async (context) => {
      using protectionDomain = context.allocateProtectionDomain()
      const region = await protectionDomain.allocateMemoryRegion(4096)
      expectUnsupported(() => region.reregister({ access: ['remote-read'] }))
    },
  )

  itRequires(
    'reregister',
    'a region moves to another protection domain',
    async () => {
      using device = await openContext()
      using first = device.context.allocateProtectionDomain()
      using second = device.context.allocateProtectionDomain()
      const region = await first.allocateMemoryRegion(4096, ['local-write'])
      region.reregister({ access: ['local-write'], protectionDomain: second })
      expect(region.protectionDomain).toBe(second)
      first.close()
      expect(region.closed).toBe(false)
    },
    () => {},
  )

  itRequires(
    'dmaBuffer',
    'a file that is no DMA buffer is refused',
    async () => {
      using device = await openContext()
      using protectionDomain = device.context.allocateProtectionDomain()
      expect(() => protectionDomain.registerDmaBuffer({ fd: 0, length: 4096 })).toThrow(
        expect.objectContaining({ verb: 'ibv_reg_dmabuf_mr' }),
      )
    },
    (context) => {
      using protectionDomain = context.allocateProtectionDomain()
      expectUnsupported(() => protectionDomain.registerDmaBuffer({ fd: 0, length: 4096 }))
    },
  )
})
