import { describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import {
  completions,
  connectedPair,
  errorShows,
  isRxe,
  isSiw,
  LISTEN_URI,
  pattern,
  unsupported,
} from './pair.js'

describe(`flags and limits on ${LISTEN_URI}`, () => {
  it('signalAll completes what asks for no completion', async () => {
    using pair = await connectedPair({ signalAll: true })
    const { client, server } = pair
    client.queuePair.postSend({
      opcode: 'rdma-write',
      signaled: false,
      workRequestId: 4n,
      data: [{ region: client.region, length: 8 }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    expect(await completions(client.completionQueue, 1)).toMatchObject([
      { status: 'success', workRequestId: 4n },
    ])
  })

  it('a fenced send carries what the read before it brought', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    for (let round = 0; round < effort(20); round++) {
      server.bytes.set(pattern(50_000, round))
      server.queuePair.postReceive({ data: [{ region: server.region, offset: 500_000, length: 50_000 }] })
      client.bytes.fill(0, 0, 50_000)
      client.queuePair.postSend(
        {
          opcode: 'rdma-read',
          signaled: false,
          data: [{ region: client.region, length: 50_000 }],
          remoteAddress: server.region.address,
          remoteKey: server.region.remoteKey,
        },
        { opcode: 'send', fence: true, data: [{ region: client.region, length: 50_000 }] },
      )
      expect(await completions(server.completionQueue, 1)).toMatchObject([{ status: 'success' }])
      await completions(client.completionQueue, 1)
      expect(Buffer.compare(server.bytes.subarray(500_000, 550_000), pattern(50_000, round))).toBe(0)
    }
  })

  it('gathers a message from several pieces and scatters it over several', async () => {
    using pair = await connectedPair({ maxSendElements: 4, maxReceiveElements: 3 })
    const { client, server } = pair
    const whole = pattern(1000)
    client.bytes.set(whole.subarray(0, 1), 0)
    client.bytes.set(whole.subarray(1, 700), 5000)
    client.bytes.set(whole.subarray(700), 9000)
    server.queuePair.postReceive({
      data: [
        { region: server.region, offset: 0, length: 333 },
        { region: server.region, offset: 1000, length: 600 },
        { region: server.region, offset: 2000, length: 600 },
      ],
    })
    client.queuePair.postSend({
      opcode: 'send',
      data: [
        { region: client.region, offset: 0, length: 1 },
        { region: client.region, offset: 5000, length: 699 },
        // siw of Linux 6.1 looks up no memory for an empty piece, and breaks on it in the kernel.
        ...(isSiw(client.context) ? [] : [{ region: client.region, offset: 100, length: 0 }]),
        { region: client.region, offset: 9000, length: 300 },
      ],
    })
    expect(await completions(server.completionQueue, 1)).toMatchObject([{ byteLength: 1000 }])
    const got = Buffer.concat([
      server.bytes.subarray(0, 333),
      server.bytes.subarray(1000, 1600),
      server.bytes.subarray(2000, 2067),
    ])
    expect(Buffer.compare(got, whole)).toBe(0)
  })

  it('SEND with immediate data, or the capability says that there is none', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const send = {
      opcode: 'send-with-immediate',
      immediate: 0x01020304,
      data: [{ region: client.region, length: 33 }],
    } as const
    server.queuePair.postReceive({ workRequestId: 8n, data: [{ region: server.region }] })
    if (!client.context.capabilities.sendWithImmediate) {
      expect(() => client.queuePair.postSend(send)).toThrow()
      return
    }
    client.queuePair.postSend(send)
    expect(await completions(server.completionQueue, 1)).toMatchObject([
      { status: 'success', opcode: 'receive', immediate: 0x01020304, byteLength: 33, workRequestId: 8n },
    ])
  })

  it('a zero-byte WRITE and READ complete and touch nothing', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const nothing = { remoteAddress: server.region.address, remoteKey: server.region.remoteKey }
    client.queuePair.postSend({ opcode: 'rdma-write', ...nothing }, { opcode: 'rdma-read', ...nothing })
    expect(await completions(client.completionQueue, 2)).toMatchObject([
      { status: 'success', opcode: 'rdma-write' },
      { status: 'success', opcode: 'rdma-read' },
    ])
  })

  it('inline data beyond the limit is refused while posting', async () => {
    using pair = await connectedPair()
    const { client } = pair
    // siw takes some more than it grants.
    const length = client.queuePair.maxInlineData + (isSiw(client.context) ? 1024 : 1)
    expect(() =>
      client.queuePair.postSend({ opcode: 'send', inline: true, data: [{ region: client.region, length }] }),
    ).toThrow(expect.objectContaining({ verb: 'ibv_post_send' }))
  })

  it('more pieces than the queue pair has are refused while posting', async () => {
    using pair = await connectedPair({ maxSendElements: 1, maxReceiveElements: 1 })
    const { client } = pair
    // Devices round up: 64 is beyond all of them.
    const data = Array.from({ length: 64 }, (_, i) => ({ region: client.region, offset: i, length: 1 }))
    expect(() => client.queuePair.postSend({ opcode: 'send', data })).toThrow(
      expect.objectContaining({ verb: 'ibv_post_send' }),
    )
    expect(() => client.queuePair.postReceive({ data })).toThrow(
      expect.objectContaining({ verb: 'ibv_post_recv' }),
    )
  })

  it('a send queue that is full refuses one more, and takes it when completions were polled', async (test) => {
    using pair = await connectedPair({ maxSend: 16 })
    const { client, server } = pair
    const write = () =>
      client.queuePair.postSend({
        opcode: 'rdma-write',
        data: [{ region: client.region, length: 8 }],
        remoteAddress: server.region.address,
        remoteKey: server.region.remoteKey,
      })
    let posted = 0
    let failure: unknown
    while (failure === undefined && posted < 500) {
      try {
        write()
        posted++
      } catch (thrown) {
        failure = thrown
      }
    }
    if ((isRxe(client.context) || isSiw(client.context)) && failure === undefined)
      return unsupported(test, 'the device frees an entry before its completion is polled')
    expect(failure).toMatchObject({ code: 'ENOMEM', verb: 'ibv_post_send' })
    expect(posted).toBeGreaterThanOrEqual(16)
    const done = await completions(client.completionQueue, posted)
    expect(done.every(({ status }) => status === 'success')).toBe(true)
    write()
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
  })

  it('source memory under a key that is not its own is a local protection error', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const strange = client.context.allocateProtectionDomain()
    const region = await strange.allocateMemoryRegion(4096)
    client.queuePair.postSend({
      opcode: 'rdma-write',
      data: [{ region, length: 64 }],
      remoteAddress: server.region.address,
      remoteKey: server.region.remoteKey,
    })
    const [failed] = await completions(client.completionQueue, 1)
    // ibv_poll_cq(3): IBV_WC_LOC_PROT_ERR; rxe of Linux 6.1 says IBV_WC_LOC_QP_OP_ERR, siw IBV_WC_LOC_LEN_ERR.
    expect(['local-protection-error', 'local-queue-pair-operation-error', 'local-length-error']).toContain(
      failed?.status,
    )
    await errorShows(client)
    expect(client.queuePair.state).toBe('error')
    strange.close()
  })
})
