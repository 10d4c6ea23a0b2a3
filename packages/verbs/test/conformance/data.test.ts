import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { completions, connectedPair, LISTEN_URI, type Pair, pattern, REGION_BYTES } from './pair.js'

describe(`data transfer on ${LISTEN_URI}`, () => {
  let pair: Pair
  beforeEach(async () => {
    pair = await connectedPair()
  })
  afterEach(() => pair[Symbol.dispose]())

  it.each([1, 64, 4096, 65_537, REGION_BYTES])('SEND of %i bytes arrives whole', async (length) => {
    const { client, server } = pair
    server.queuePair.postReceive({ workRequestId: 7n, data: [{ region: server.region }] })
    client.bytes.set(pattern(length))
    client.queuePair.postSend({
      opcode: 'send',
      workRequestId: 9n,
      data: [{ region: client.region, length }],
    })
    const [received] = await completions(server.completionQueue, 1)
    const [sent] = await completions(client.completionQueue, 1)
    expect(received).toMatchObject({
      status: 'success',
      opcode: 'receive',
      workRequestId: 7n,
      byteLength: length,
    })
    expect(sent).toMatchObject({ status: 'success', opcode: 'send', workRequestId: 9n })
    expect(Buffer.compare(server.bytes.subarray(0, length), pattern(length))).toBe(0)
  })

  it('SEND of no bytes completes at both ends', async () => {
    const { client, server } = pair
    server.queuePair.postReceive({ data: [{ region: server.region }] })
    client.queuePair.postSend({ opcode: 'send' })
    expect(await completions(server.completionQueue, 1)).toMatchObject([{ status: 'success', byteLength: 0 }])
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
  })

  it('inline data may be overwritten as soon as the post returns', async () => {
    const { client, server } = pair
    const length = Math.min(32, client.queuePair.maxInlineData)
    expect(length).toBeGreaterThan(0)
    server.queuePair.postReceive({ data: [{ region: server.region }] })
    client.bytes.set(pattern(length))
    client.queuePair.postSend({ opcode: 'send', inline: true, data: [{ region: client.region, length }] })
    client.bytes.fill(0)
    await completions(server.completionQueue, 1)
    expect(Buffer.compare(server.bytes.subarray(0, length), pattern(length))).toBe(0)
  })

  it.each([1, 4096, 300_001, REGION_BYTES])(
    'RDMA WRITE of %i bytes needs nothing of the target',
    async (length) => {
      const { client, server } = pair
      client.bytes.set(pattern(length, 3))
      client.queuePair.postSend({
        opcode: 'rdma-write',
        data: [{ region: client.region, length }],
        remoteAddress: server.region.address,
        remoteKey: server.region.remoteKey,
      })
      expect(await completions(client.completionQueue, 1)).toMatchObject([
        { status: 'success', opcode: 'rdma-write' },
      ])
      // A write's completion says that its source may be reused; a read behind it sees what it wrote.
      client.queuePair.postSend({
        opcode: 'rdma-read',
        data: [{ region: client.region, length: 1 }],
        remoteAddress: server.region.address,
        remoteKey: server.region.remoteKey,
      })
      await completions(client.completionQueue, 1)
      expect(Buffer.compare(server.bytes.subarray(0, length), pattern(length, 3))).toBe(0)
      expect(server.completionQueue.poll()).toEqual([])
    },
  )

  it.each([1, 4096, 300_001, REGION_BYTES])('RDMA READ of %i bytes', async (length) => {
    const { client, server } = pair
    server.bytes.set(pattern(length, 5))
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region: client.region, length }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    expect(await completions(client.completionQueue, 1)).toMatchObject([
      { status: 'success', opcode: 'rdma-read' },
    ])
    expect(Buffer.compare(client.bytes.subarray(0, length), pattern(length, 5))).toBe(0)
  })

  it('RDMA WRITE with immediate data, or the capability says that there is none', async () => {
    const { client, server } = pair
    const write = {
      opcode: 'rdma-write-with-immediate',
      immediate: 0xdeadbeef,
      data: [{ region: client.region, length: 100 }],
      remoteAddress: server.region.address + 50n,
      remoteKey: server.region.remoteKey,
    } as const
    if (!client.context.capabilities.writeWithImmediate) {
      expect(() => client.queuePair.postSend(write)).toThrow()
      return
    }
    server.queuePair.postReceive({ workRequestId: 3n })
    client.bytes.set(pattern(100))
    client.queuePair.postSend(write)
    expect(await completions(server.completionQueue, 1)).toMatchObject([
      {
        status: 'success',
        opcode: 'receive-rdma-write-with-immediate',
        immediate: 0xdeadbeef,
        workRequestId: 3n,
        byteLength: 100,
      },
    ])
    expect(Buffer.compare(server.bytes.subarray(50, 150), pattern(100))).toBe(0)
  })

  it('unsignaled requests complete silently, the signaled one behind them for all', async () => {
    const { client, server } = pair
    const write = (signaled: boolean, at: number) =>
      ({
        opcode: 'rdma-write',
        signaled,
        workRequestId: BigInt(at),
        data: [{ region: client.region, offset: at * 64, length: 64 }],
        remoteAddress: server.region.address + BigInt(at * 64),
        remoteKey: server.region.remoteKey,
      }) as const
    client.bytes.set(pattern(64 * 32))
    client.queuePair.postSend(...Array.from({ length: 32 }, (_, i) => write(i === 31, i)))
    const done = await completions(client.completionQueue, 1)
    expect(done).toMatchObject([{ status: 'success', workRequestId: 31n }])
    expect(client.completionQueue.poll()).toEqual([])
  })

  it('a send queue that unsignaled requests have filled is free when a signaled one behind them is polled', async () => {
    const { client, server } = pair
    const write = (signaled: boolean) =>
      ({
        opcode: 'rdma-write',
        signaled,
        data: [{ region: client.region, length: 64 }],
        remoteAddress: server.region.address,
        remoteKey: server.region.remoteKey,
      }) as const
    const room = 128
    for (let round = 0; round < 4; round++) {
      client.queuePair.postSend(...Array.from({ length: room }, (_, i) => write(i === room - 1)))
      expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    }
    // With none to be polled there is no more room than that, whatever is done by now. Soft-RoCE and Soft-iWARP look
    // whether it is, as no card does.
    if (client.context.provider === 'ibverbs') return
    const fill = () => client.queuePair.postSend(write(false))
    for (let i = 0; i < room; i++) fill()
    // They are at the server long since, and there is nothing to be polled.
    expect(client.completionQueue.poll()).toEqual([])
    expect(fill).toThrow(expect.objectContaining({ code: 'ENOMEM' }))
  })

  it('keeps the order of many messages', async () => {
    const messages = Math.min(effort(1000), REGION_BYTES / 4)
    const { client, server } = pair
    const words = new Uint32Array(client.region.buffer)
    let posted = 0
    const seen: number[] = []
    const receive = (slot: number) =>
      server.queuePair.postReceive({
        workRequestId: BigInt(slot),
        data: [{ region: server.region, offset: slot * 4, length: 4 }],
      })
    for (let slot = 0; slot < 64; slot++) receive(slot)
    const arrived = new Uint32Array(server.region.buffer)
    while (seen.length < messages) {
      while (posted < messages && posted < seen.length + 32) {
        words[posted] = posted
        client.queuePair.postSend({
          opcode: 'send',
          data: [{ region: client.region, offset: posted * 4, length: 4 }],
        })
        posted++
      }
      for (const { status, workRequestId } of await completions(server.completionQueue, 1)) {
        expect(status).toBe('success')
        seen.push(arrived[Number(workRequestId)] as number)
        receive(Number(workRequestId))
      }
      client.completionQueue.poll(64)
    }
    expect(seen).toEqual(Array.from({ length: messages }, (_, i) => i))
  })
})

describe(`completion channel on ${LISTEN_URI}`, () => {
  it('wakes a waiter when the completion arrives, and never before', async () => {
    using pair = await connectedPair({ channel: true })
    const { client, server } = pair
    server.queuePair.postReceive({ data: [{ region: server.region }] })
    const waiting = server.completionQueue.wait()
    client.queuePair.postSend({ opcode: 'send', data: [{ region: client.region, length: 10 }] })
    expect(await waiting).toMatchObject([{ status: 'success', byteLength: 10 }])
  })

  it('gives up when the signal aborts', async () => {
    using pair = await connectedPair({ channel: true })
    const stop = new AbortController()
    const waiting = pair.server.completionQueue.wait(1, { signal: stop.signal })
    stop.abort(new Error('enough'))
    await expect(waiting).rejects.toThrow('enough')
  })
})
