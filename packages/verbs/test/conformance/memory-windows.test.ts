import { describe, expect } from 'vitest'
import {
  completions,
  connectedPair,
  type End,
  expectRefused,
  expectUnsupported,
  isRxe,
  itRequires,
  LISTEN_URI,
  pattern,
  unsupported,
} from './pair.js'

const ACCESS = ['local-write', 'bind-memory-window'] as const

const write = (client: End, address: bigint, remoteKey: number, length = 64) =>
  ({
    opcode: 'rdma-write',
    data: [{ region: client.region, length }],
    remoteAddress: address,
    remoteKey,
  }) as const

const read = (client: End, address: bigint, remoteKey: number, length = 64) =>
  ({ ...write(client, address, remoteKey, length), opcode: 'rdma-read' }) as const

/** A window of the server's over bytes 4096 … 8191 of its region, which peers may not touch otherwise. */
async function bound(server: End) {
  const window = server.protectionDomain.allocateMemoryWindow()
  server.queuePair.postSend({
    opcode: 'bind-memory-window',
    window,
    region: server.region,
    offset: 4096,
    length: 4096,
    access: ['remote-read', 'remote-write'],
  })
  expect(await completions(server.completionQueue, 1)).toMatchObject([
    { status: 'success', opcode: 'bind-memory-window' },
  ])
  return window
}

const refused = async () => {
  using pair = await connectedPair()
  const { client } = pair
  expectUnsupported(() => client.protectionDomain.allocateMemoryWindow())
}

describe(`memory windows on ${LISTEN_URI}`, () => {
  itRequires(
    'memoryWindow',
    'a bound window is written and read through',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const window = await bound(server)
      const start = server.region.address + 4096n
      client.bytes.set(pattern(64))
      client.queuePair.postSend(write(client, start + 4032n, window.remoteKey))
      expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      client.bytes.fill(0)
      client.queuePair.postSend(read(client, start + 4032n, window.remoteKey))
      expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      expect(Buffer.compare(client.bytes.subarray(0, 64), pattern(64))).toBe(0)
    },
    refused,
  )

  itRequires(
    'memoryWindow',
    'a window ends where it was bound to end',
    async (test) => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const window = await bound(server)
      client.queuePair.postSend(read(client, server.region.address + 4096n + 4033n, window.remoteKey))
      const [beyond] = await completions(client.completionQueue, 1)
      if (isRxe(client.context) && beyond?.status === 'success')
        return unsupported(test, 'rxe looks at the bounds of the region only')
      expect(beyond?.status).toBe('remote-access-error')
    },
    refused,
  )

  itRequires(
    'memoryWindow',
    'a window that was never bound is out of reach',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const window = server.protectionDomain.allocateMemoryWindow()
      client.queuePair.postSend(read(client, server.region.address + 4096n, window.remoteKey))
      expect((await completions(client.completionQueue, 1))[0]?.status).toBe('remote-access-error')
    },
    refused,
  )

  itRequires(
    'memoryWindow',
    'local-invalidate takes the access away',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const window = await bound(server)
      server.queuePair.postSend({ opcode: 'local-invalidate', invalidateKey: window.remoteKey })
      expect(await completions(server.completionQueue, 1)).toMatchObject([
        { status: 'success', opcode: 'local-invalidate' },
      ])
      client.queuePair.postSend(read(client, server.region.address + 4096n, window.remoteKey))
      expect((await completions(client.completionQueue, 1))[0]?.status).toBe('remote-access-error')
    },
    refused,
  )

  itRequires(
    'memoryWindow',
    'send-with-invalidate takes it away before the receive completes, and says so',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const window = await bound(server)
      const { remoteKey } = window
      server.queuePair.postReceive({ workRequestId: 5n, data: [{ region: server.region, length: 64 }] })
      client.queuePair.postSend({
        opcode: 'send-with-invalidate',
        invalidateKey: remoteKey,
        data: [{ region: client.region, length: 10 }],
      })
      const [received] = await completions(server.completionQueue, 1)
      expect(received).toMatchObject({
        status: 'success',
        opcode: 'receive',
        workRequestId: 5n,
        byteLength: 10,
      })
      // rxe of Linux 6.1 sets the kernel's flag for it, which is another one in libibverbs.
      if (!isRxe(server.context)) expect(received?.invalidatedKey).toBe(remoteKey)
      await completions(client.completionQueue, 1)
      client.queuePair.postSend(read(client, server.region.address + 4096n, remoteKey))
      expect((await completions(client.completionQueue, 1))[0]?.status).toBe('remote-access-error')
    },
    refused,
  )

  itRequires(
    'memoryWindow',
    'binding again gives another key, and the old one is dead',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const window = await bound(server)
      const old = window.remoteKey
      server.queuePair.postSend({ opcode: 'local-invalidate', invalidateKey: old })
      await completions(server.completionQueue, 1)
      server.queuePair.postSend({
        opcode: 'bind-memory-window',
        window,
        region: server.region,
        offset: 0,
        length: 100,
        access: ['remote-read'],
      })
      expect(await completions(server.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      expect(window.remoteKey).not.toBe(old)
      client.queuePair.postSend(read(client, server.region.address, window.remoteKey, 100))
      expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      client.queuePair.postSend(read(client, server.region.address, old, 100))
      expect((await completions(client.completionQueue, 1))[0]?.status).toBe('remote-access-error')
    },
    refused,
  )

  itRequires(
    'memoryWindow',
    'binding to a region that does not allow it fails',
    async () => {
      using pair = await connectedPair()
      const { server } = pair
      const window = server.protectionDomain.allocateMemoryWindow()
      let refusedAtOnce = false
      try {
        server.queuePair.postSend({
          opcode: 'bind-memory-window',
          window,
          region: server.region,
          access: ['remote-read'],
        })
      } catch (failure) {
        // Some drivers look while posting.
        expect(failure).toMatchObject({ code: expect.stringMatching(/^(EINVAL|EPERM)$/) })
        refusedAtOnce = true
      }
      if (!refusedAtOnce)
        expect((await completions(server.completionQueue, 1))[0]?.status).toBe('memory-window-bind-error')
    },
    refused,
  )

  itRequires(
    'memoryWindow',
    'a key that names no window is not invalidated, and the message not received',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      server.queuePair.postReceive({ data: [{ region: server.region, length: 64 }] })
      client.queuePair.postSend({
        opcode: 'send-with-invalidate',
        invalidateKey: (server.region.remoteKey ^ 0xff00) >>> 0,
      })
      const [received] = await completions(server.completionQueue, 1)
      expect(received?.status).not.toBe('success')
    },
    async () => {
      using pair = await connectedPair()
      const { client } = pair
      expectRefused(() =>
        client.queuePair.postSend({ opcode: 'local-invalidate', invalidateKey: client.region.remoteKey }),
      )
    },
  )
})
