import { firstValueFrom, timeout } from 'rxjs'
import { filter } from 'rxjs/operators'
import { describe, expect } from 'vitest'
import type { Context, SharedReceiveQueue } from '../../src/index.js'
import {
  completions,
  connectedPair,
  DEADLINE_MS,
  expectUnsupported,
  itRequires,
  LISTEN_URI,
  pattern,
} from './pair.js'

const refused = (context: Context) => {
  const protectionDomain = context.allocateProtectionDomain()
  expectUnsupported(() => protectionDomain.createSharedReceiveQueue())
  protectionDomain.close()
}

const shared = (end: { sharedReceiveQueue: SharedReceiveQueue | undefined }) =>
  end.sharedReceiveQueue as SharedReceiveQueue

describe(`shared receive queue on ${LISTEN_URI}`, () => {
  itRequires(
    'sharedReceiveQueue',
    'messages take its receives in order, and arrive whole',
    async () => {
      using pair = await connectedPair({ sharedReceives: 64 })
      const { client, server } = pair
      for (let i = 0; i < 32; i++)
        shared(server).postReceive({
          workRequestId: BigInt(i),
          data: [{ region: server.region, offset: i * 4096, length: 4096 }],
        })
      for (let i = 0; i < 32; i++) {
        client.bytes.set(pattern(4096, i), i * 4096)
        client.queuePair.postSend({
          opcode: 'send',
          data: [{ region: client.region, offset: i * 4096, length: 1 + i * 130 }],
        })
      }
      const received = await completions(server.completionQueue, 32)
      expect(received.map(({ status }) => status)).toEqual(Array(32).fill('success'))
      expect(received.map(({ workRequestId }) => Number(workRequestId))).toEqual(
        Array.from({ length: 32 }, (_, i) => i),
      )
      for (const { workRequestId, byteLength } of received) {
        const i = Number(workRequestId)
        expect(byteLength).toBe(1 + i * 130)
        expect(
          Buffer.compare(
            server.bytes.subarray(i * 4096, i * 4096 + byteLength),
            pattern(4096, i).subarray(0, byteLength),
          ),
        ).toBe(0)
      }
    },
    refused,
  )

  itRequires(
    'sharedReceiveQueue',
    'a full queue refuses one more',
    async () => {
      using pair = await connectedPair({ sharedReceives: 16 })
      const { server } = pair
      const room = shared(server).maxReceive
      expect(room).toBeGreaterThanOrEqual(16)
      const post = () => shared(server).postReceive({ data: [{ region: server.region, length: 64 }] })
      for (let i = 0; i < room; i++) post()
      expect(post).toThrow(expect.objectContaining({ code: 'ENOMEM', verb: 'ibv_post_srq_recv' }))
    },
    refused,
  )

  itRequires(
    'sharedReceiveQueue',
    'the limit raises one event each time it is armed',
    async () => {
      using pair = await connectedPair({ sharedReceives: 32 })
      const { client, server } = pair
      const queue = shared(server)
      for (let i = 0; i < 8; i++) queue.postReceive({ data: [{ region: server.region, length: 64 }] })
      const events: unknown[] = []
      const limits = server.context.asyncEvents.pipe(
        filter(({ type }) => type === 'shared-receive-queue-limit-reached'),
      )
      const watching = limits.subscribe(({ object }) => events.push(object))
      const reached = firstValueFrom(limits.pipe(timeout(DEADLINE_MS)))
      queue.armLimit(6)
      const send = async () => {
        client.queuePair.postSend({ opcode: 'send', data: [{ region: client.region, length: 8 }] })
        await completions(server.completionQueue, 1)
        await completions(client.completionQueue, 1)
      }
      await send()
      await send()
      expect(events).toEqual([])
      await send()
      expect(await reached).toMatchObject({ object: queue })
      await send()
      expect(events).toEqual([queue])
      watching.unsubscribe()
    },
    refused,
  )

  itRequires(
    'sharedReceiveQueue',
    'what one connection did not take is there for the next',
    async () => {
      using pair = await connectedPair({ sharedReceives: 16 })
      const { client, server } = pair
      shared(server).postReceive({ workRequestId: 1n, data: [{ region: server.region, length: 64 }] })
      client.id.disconnect()
      await server.id.disconnected
      // A shared queue's receives are not flushed by the end of one of its queue pairs.
      expect(server.completionQueue.poll()).toEqual([])
    },
    refused,
  )
})
