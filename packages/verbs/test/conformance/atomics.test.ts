import { describe, expect } from 'vitest'
import { completions, connectedPair, type End, expectRefused, isRxe, itRequires, LISTEN_URI } from './pair.js'

const ACCESS = ['remote-read', 'remote-write', 'remote-atomic'] as const

const fetchAndAdd = (client: End, server: End, at: number, add: bigint) =>
  ({
    opcode: 'fetch-and-add',
    add,
    data: [{ region: client.region, length: 8 }],
    remoteAddress: server.region.address + BigInt(at),
    remoteKey: server.region.remoteKey,
  }) as const

const compareAndSwap = (client: End, server: End, at: number, compare: bigint, swap: bigint) =>
  ({
    opcode: 'compare-and-swap',
    compare,
    swap,
    data: [{ region: client.region, length: 8 }],
    remoteAddress: server.region.address + BigInt(at),
    remoteKey: server.region.remoteKey,
  }) as const

const refused = async () => {
  using pair = await connectedPair()
  const { client, server } = pair
  expectRefused(() => client.queuePair.postSend(fetchAndAdd(client, server, 0, 1n)))
  expectRefused(() => client.queuePair.postSend(compareAndSwap(client, server, 0, 0n, 1n)))
}

describe(`atomics on ${LISTEN_URI}`, () => {
  itRequires(
    'atomics',
    'fetch-and-add gives what was there and wraps at 2^64',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const there = new BigUint64Array(server.region.buffer, 64, 1)
      const before = new BigUint64Array(client.region.buffer, 0, 1)
      there[0] = 2n ** 64n - 2n
      client.queuePair.postSend(fetchAndAdd(client, server, 64, 5n))
      expect(await completions(client.completionQueue, 1)).toMatchObject([
        { status: 'success', opcode: 'fetch-and-add' },
      ])
      expect(before[0]).toBe(2n ** 64n - 2n)
      expect(there[0]).toBe(3n)
    },
    refused,
  )

  itRequires(
    'atomics',
    'compare-and-swap swaps only what compares equal',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const there = new BigUint64Array(server.region.buffer, 0, 1)
      const before = new BigUint64Array(client.region.buffer, 0, 1)
      there[0] = 0x1122334455667788n
      client.queuePair.postSend(compareAndSwap(client, server, 0, 1n, 99n))
      expect(await completions(client.completionQueue, 1)).toMatchObject([
        { status: 'success', opcode: 'compare-and-swap' },
      ])
      expect(before[0]).toBe(0x1122334455667788n)
      expect(there[0]).toBe(0x1122334455667788n)
      client.queuePair.postSend(compareAndSwap(client, server, 0, 0x1122334455667788n, 99n))
      await completions(client.completionQueue, 1)
      expect(before[0]).toBe(0x1122334455667788n)
      expect(there[0]).toBe(99n)
    },
    refused,
  )

  itRequires(
    'atomics',
    'a thousand increments from both ends lose none',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      // Both count in the server's memory: the client over the wire, the server through its own device too.
      const there = new BigUint64Array(server.region.buffer, 0, 1)
      for (let round = 0; round < 100; round++) {
        client.queuePair.postSend(...Array.from({ length: 10 }, () => fetchAndAdd(client, server, 0, 1n)))
        await completions(client.completionQueue, 10)
      }
      expect(there[0]).toBe(1000n)
    },
    refused,
  )

  itRequires(
    'atomics',
    'an atomic on memory that does not allow it is a remote access error',
    async () => {
      using pair = await connectedPair({ access: ['remote-read', 'remote-write'] })
      const { client, server } = pair
      client.queuePair.postSend(fetchAndAdd(client, server, 0, 1n))
      expect((await completions(client.completionQueue, 1))[0]?.status).toBe('remote-access-error')
      expect(new BigUint64Array(server.region.buffer, 0, 1)[0]).toBe(0n)
    },
    refused,
  )

  itRequires(
    'atomics',
    'an address that is not aligned to 8 is refused by the responder',
    async () => {
      using pair = await connectedPair({ access: ACCESS })
      const { client, server } = pair
      const misaligned = fetchAndAdd(client, server, 4, 1n)
      // rxe looks while posting.
      if (isRxe(client.context)) return expectRefused(() => client.queuePair.postSend(misaligned))
      client.queuePair.postSend(misaligned)
      // IBTA calls it an invalid request; iWARP knows only the access error.
      expect(['remote-invalid-request-error', 'remote-access-error']).toContain(
        (await completions(client.completionQueue, 1))[0]?.status,
      )
    },
    refused,
  )
})
