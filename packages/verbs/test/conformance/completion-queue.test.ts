import { AsyncLocalStorage } from 'node:async_hooks'
import { firstValueFrom, timeout } from 'rxjs'
import { filter, first } from 'rxjs/operators'
import { describe, expect, it } from 'vitest'
import {
  completions,
  connectedPair,
  DEADLINE_MS,
  type End,
  expectUnsupported,
  isSiw,
  itRequires,
  LISTEN_URI,
  openContext,
  unsupported,
} from './pair.js'

/** siw_rqe_complete of Linux 6.1 takes every receive for an ordinary one. */
const NEVER_SOLICITED = 'siw raises no event for whoever is armed for solicited completions'

const send = (end: End, options: { solicited?: boolean; signaled?: boolean } = {}) =>
  end.queuePair.postSend({ opcode: 'send', data: [{ region: end.region, length: 8 }], ...options })

const receive = (end: End, count: number) => {
  for (let i = 0; i < count; i++) end.queuePair.postReceive({ data: [{ region: end.region, length: 64 }] })
}

describe(`completion queue on ${LISTEN_URI}`, () => {
  it('poll takes no more than it is asked for, and loses none', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    receive(server, 20)
    for (let i = 0; i < 20; i++) send(client)
    await completions(client.completionQueue, 20)
    let taken = 0
    const deadline = Date.now() + DEADLINE_MS
    while (taken < 20 && Date.now() < deadline) {
      const got = server.completionQueue.poll(3)
      expect(got.length).toBeLessThanOrEqual(3)
      taken += got.length
      await new Promise((resolve) => setImmediate(resolve))
    }
    expect(taken).toBe(20)
    expect(server.completionQueue.poll()).toEqual([])
  })

  it('refuses a queue without entries, or with more than the device has', async () => {
    using device = await openContext()
    expect(() => device.context.createCompletionQueue({ entries: 0 })).toThrow(/whole number/)
    const { max_cqe } = device.context.queryDevice()
    expect(() => device.context.createCompletionQueue({ entries: (max_cqe as number) + 1 })).toThrow(
      expect.objectContaining({ verb: 'ibv_create_cq', code: expect.stringMatching(/^(EINVAL|ENOMEM)$/) }),
    )
  })

  it('armed for solicited completions only, an ordinary one does not wake', async (test) => {
    using pair = await connectedPair({ channel: true })
    const { client, server } = pair
    if (isSiw(server.context)) return unsupported(test, NEVER_SOLICITED)
    receive(server, 2)
    let woken = 0
    server.completionQueue.channel?.subscribe(server.completionQueue, () => woken++)
    server.completionQueue.requestNotification(true)
    send(client)
    await completions(server.completionQueue, 1)
    await completions(client.completionQueue, 1)
    // An event of the first would have come before the round trip of the second.
    expect(woken).toBe(0)
    send(client, { solicited: true })
    await completions(server.completionQueue, 1)
    await expect.poll(() => woken, { timeout: DEADLINE_MS }).toBe(1)
  })

  it('an error completion wakes whoever is armed for solicited ones', async (test) => {
    using pair = await connectedPair({ channel: true })
    const { server } = pair
    if (isSiw(server.context)) return unsupported(test, NEVER_SOLICITED)
    receive(server, 1)
    let woken = 0
    server.completionQueue.channel?.subscribe(server.completionQueue, () => woken++)
    server.completionQueue.requestNotification(true)
    server.queuePair.moveToError()
    await expect.poll(() => woken, { timeout: DEADLINE_MS }).toBe(1)
  })

  itRequires(
    'resize',
    'a resized queue keeps what it holds and has the room',
    async () => {
      using pair = await connectedPair({ entries: 16 })
      const { client, server } = pair
      receive(server, 8)
      for (let i = 0; i < 8; i++) send(client)
      await completions(client.completionQueue, 8)
      server.completionQueue.resize(400)
      expect(server.completionQueue.entries).toBeGreaterThanOrEqual(400)
      expect(await completions(server.completionQueue, 8)).toHaveLength(8)
      receive(server, 100)
      for (let i = 0; i < 100; i++) {
        send(client)
        if (i % 10 === 9) await completions(client.completionQueue, 10)
      }
      const all = await completions(server.completionQueue, 100)
      expect(all.every(({ status }) => status === 'success')).toBe(true)
    },
    (context) => {
      using queue = context.createCompletionQueue({ entries: 16 })
      expectUnsupported(() => queue.resize(400))
    },
  )

  itRequires(
    'timestamps',
    'completions are stamped in the order in which they came',
    async () => {
      using device = await openContext()
      const { context } = device
      for (const timestamps of ['device', 'wallclock'] as const) {
        using queue = context.createCompletionQueue({ entries: 16, timestamps })
        using protectionDomain = context.allocateProtectionDomain()
        expect(queue.poll()).toEqual([])
        protectionDomain.close()
      }
      device[Symbol.dispose]()
      using pair = await connectedPair({ timestamps: 'wallclock' })
      const { client, server } = pair
      const before = BigInt(Date.now()) * 1_000_000n
      receive(server, 3)
      for (let i = 0; i < 3; i++) {
        send(client)
        await completions(client.completionQueue, 1)
      }
      const stamps = (await completions(server.completionQueue, 3)).map(
        ({ timestamp }) => timestamp as bigint,
      )
      const after = BigInt(Date.now() + 1) * 1_000_000n
      expect([...stamps].sort((a, b) => (a < b ? -1 : 1))).toEqual(stamps)
      // The wall clock of Node has milliseconds.
      expect(stamps[0]).toBeGreaterThanOrEqual(before - 2_000_000n)
      expect(stamps[2]).toBeLessThanOrEqual(after)
    },
    (context) => {
      expectUnsupported(() => context.createCompletionQueue({ entries: 16, timestamps: 'device' }))
    },
  )

  it('an overrun breaks the queue, says so, and takes nothing else along', async () => {
    using pair = await connectedPair({ entries: 8, maxSend: 256 })
    const { client, server } = pair
    const room = client.completionQueue.entries
    // Each subscriber is called in its own context, although the device is watched once for all.
    const storage = new AsyncLocalStorage<string>()
    const contexts: string[] = []
    for (const name of ['one', 'two'])
      storage.run(name, () =>
        client.context.asyncEvents
          .pipe(first(({ object }) => object === client.completionQueue))
          .subscribe(() => contexts.push(`${name} in ${storage.getStore()}`)),
      )
    const failed = firstValueFrom(
      client.context.asyncEvents.pipe(
        filter(({ type, object }) => type === 'completion-queue-error' && object === client.completionQueue),
        timeout(DEADLINE_MS),
      ),
    )
    // More requests complete than the queue has entries, and no thread polls.
    for (let i = 0; i < Math.min(room + 8, 256); i++)
      client.queuePair.postSend({
        opcode: 'rdma-write',
        data: [{ region: client.region, length: 8 }],
        remoteAddress: server.region.address,
        remoteKey: server.region.remoteKey,
      })
    expect((await failed).object).toBe(client.completionQueue)
    expect(contexts.sort()).toEqual(['one in one', 'two in two'])
    using other = await connectedPair()
    receive(other.server, 1)
    send(other.client)
    expect(await completions(other.server.completionQueue, 1)).toMatchObject([{ status: 'success' }])
  })
})
