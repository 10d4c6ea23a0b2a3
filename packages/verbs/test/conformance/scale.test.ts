import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { totalmem } from 'node:os'
import { fileURLToPath } from 'node:url'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import { growth } from '../../../../test/growth.js'
import { ConnectionId, Listener } from '../../src/index.js'
import { deferred } from '../../src/internal.js'
import {
  completions,
  connectedPair,
  DEADLINE_MS,
  type End,
  isRxe,
  LISTEN_URI,
  makeEnd,
  openContext,
  unsupported,
} from './pair.js'

/** The number that devices hold. An emulated one takes seconds for so many. */
const IN_FLIGHT = Math.min(10_000, effort(10_000))
const CONNECTS = effort(250)

/** A message of the maximum size is sent from so many pieces of memory. */
const PIECES = 4
const PAGE = 4096

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

const openDescriptors = () => readdirSync('/proc/self/fd').length

/** bytes, of /proc/self/statm */
const residentBytes = () => Number(readFileSync('/proc/self/statm', 'latin1').split(' ')[1]) * 4096

describe(`scale on ${LISTEN_URI}`, { timeout: 240_000 }, () => {
  it(`${IN_FLIGHT} operations in flight, each completed once and in order`, async (test) => {
    let device: Awaited<ReturnType<typeof openContext>> | undefined = await openContext()
    const { max_qp_wr, max_cqe } = device.context.queryDevice() as Record<string, number>
    device[Symbol.dispose]()
    device = undefined
    if (Math.min(max_qp_wr as number, max_cqe as number) < IN_FLIGHT)
      unsupported(test, `the device holds ${max_qp_wr} work requests a queue`)
    const depth = Math.min(IN_FLIGHT, max_qp_wr as number, max_cqe as number)
    using pair = await connectedPair({ maxSend: depth, maxReceive: depth, entries: depth })
    const { client, server } = pair
    const receives = server.queuePair.createReceiveSlots(depth, [server.region])
    const sends = client.queuePair.createSendSlots(depth, [client.region])
    const words = new Uint32Array(client.region.buffer)
    for (let i = 0; i < depth; i++) {
      words[i] = i * 7
      receives.set(i, { workRequestId: i, region: server.region, offset: i * 4, length: 4 })
      sends.set(i, { opcode: 'send', workRequestId: i, region: client.region, offset: i * 4, length: 4 })
    }
    expect(receives.post(0, depth)).toBe(depth)
    expect(sends.post(0, depth)).toBe(depth)
    // Nothing was polled so far: all of them are outstanding.
    const order = Array.from({ length: depth }, (_, i) => i)
    for (const end of [server, client]) {
      const all = await completions(end.completionQueue, depth)
      expect(all.filter(({ status }) => status !== 'success')).toEqual([])
      expect(all.map(({ workRequestId }) => Number(workRequestId))).toEqual(order)
    }
    const arrived = new Uint32Array(server.region.buffer)
    for (let i = 0; i < depth; i++) if (arrived[i] !== i * 7) throw new Error(`message ${i} is wrong`)
  })

  it('a message of the maximum size arrives whole, and one byte more is refused', async (test) => {
    const { max_msg_sz } = await (async () => {
      using device = await openContext()
      return device.context.queryPort() as { max_msg_sz: number }
    })()
    const length = Math.min(max_msg_sz, Math.floor(totalmem() / 16))
    if (length < max_msg_sz)
      unsupported(test, `${max_msg_sz} bytes at both ends are more than this machine should give: ${length}`)
    using pair = await connectedPair({ maxSendElements: PIECES })
    const { client, server } = pair
    // It is gathered from a quarter of its length, each time from a page further on. A page holds its number.
    const piece = Math.ceil(length / PIECES / PAGE) * PAGE
    const source = await client.protectionDomain.allocateMemoryRegion(piece + PIECES * PAGE)
    const pages = new Float64Array(source.buffer)
    for (let at = 0; at < pages.length; at += PAGE / 8) pages[at] = at / (PAGE / 8) + 1
    new Uint8Array(source.buffer)[(PIECES - 1) * PAGE + length - (PIECES - 1) * piece - 1] = 55
    const gathered = (bytes: number) =>
      Array.from({ length: PIECES }, (_, i) => ({
        region: source,
        offset: i * PAGE,
        length: i < PIECES - 1 ? piece : bytes - i * piece,
      }))
    const sink = await server.protectionDomain.allocateMemoryRegion(length + PAGE)
    const arrived = new Uint8Array(sink.buffer)
    arrived[length] = 77
    server.queuePair.postReceive({ data: [{ region: sink }] })
    client.queuePair.postSend({ opcode: 'send', data: gathered(length) })
    expect(await completions(server.completionQueue, 1, 200_000)).toMatchObject([
      { status: 'success', byteLength: length },
    ])
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    const marks = new Float64Array(sink.buffer)
    for (let at = 0; at < length; at += PAGE) {
      const from = Math.floor(at / piece)
      const number = (at - from * piece) / PAGE + from + 1
      if (length - at >= 8 && marks[at / 8] !== number) throw new Error(`byte ${at} is wrong`)
    }
    expect([...arrived.subarray(length - 1, length + 1)]).toEqual([55, 77])
    if (length < max_msg_sz || isRxe(client.context)) return // rxe sends what it says that it does not
    expect(() => client.queuePair.postSend({ opcode: 'send', data: gathered(length + 1) })).toThrow(
      expect.objectContaining({ verb: 'ibv_post_send', code: 'EINVAL' }),
    )
  })

  it(`${CONNECTS} connections come and go, and leave nothing behind`, async () => {
    const small = { entries: 16, maxSend: 4, maxReceive: 4, bytes: 65_536 }
    const cycle = async () => {
      using pair = await connectedPair(small)
      const { client, server } = pair
      for (const { bytes } of [client, server]) bytes.fill(1)
      server.queuePair.postReceive({ data: [{ region: server.region }] })
      client.queuePair.postSend({ opcode: 'send', data: [{ region: client.region, length: 8 }] })
      expect(await completions(server.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    }
    for (let i = 0; i < CONNECTS / 5; i++) await cycle()
    await settled()
    const descriptors = openDescriptors()
    const many = async () => {
      for (let i = 0; i < CONNECTS; i++) await cycle()
      await settled()
      // The peers' closes may not have been seen yet.
      await eventually(() => openDescriptors() <= descriptors)
    }
    // A quarter of one end's memory for each connection, and the noise of a garbage collected heap.
    const limit = CONNECTS * 16_384 + 2 ** 23
    expect(await growth(residentBytes, many, limit)).toBeLessThan(limit)
  })

  it('a peer that is killed ends the connection, and everything outstanding with it', async () => {
    const { promise: accepted, resolve } = deferred<End>()
    const listener = await Listener.listen(LISTEN_URI, async ({ id }) => {
      const end = await makeEnd(id, {})
      end.queuePair.postReceive({ workRequestId: 1n, data: [{ region: end.region }] })
      end.queuePair.postReceive({ workRequestId: 2n, data: [{ region: end.region }] })
      await id.accept({ timeout: DEADLINE_MS })
      resolve(end)
    })
    const peer = spawn(
      process.execPath,
      [fileURLToPath(new URL('killed-peer.mjs', import.meta.url)), listener.uri],
      { stdio: ['pipe', 'ignore', 'inherit'] },
    )
    try {
      const server = await accepted
      expect(await completions(server.completionQueue, 1)).toMatchObject([{ workRequestId: 1n }])
      peer.kill('SIGKILL')
      await once(peer, 'exit')
      await server.id.disconnected
      expect(await completions(server.completionQueue, 1)).toMatchObject([
        { workRequestId: 2n, status: 'flushed' },
      ])
      expect(server.queuePair.state).toBe('error')
      server.id.close()
      server.protectionDomain.close()
      server.completionQueue.close()
    } finally {
      peer.kill('SIGKILL')
      listener.close()
    }
  })

  it('a connection that nobody accepts is given up in time', async () => {
    // Held: a request that nobody refers to any more is refused.
    const held: unknown[] = []
    const listener = await Listener.listen(LISTEN_URI, (request) => void held.push(request))
    const id = await ConnectionId.resolve(listener.uri)
    const protectionDomain = id.context.allocateProtectionDomain()
    id.createQueuePair(protectionDomain, { sendQueue: id.context.createCompletionQueue({ entries: 16 }) })
    // Two timers of one event loop ring in their order, however late. By default it is given up after 5 s.
    const later = new Promise((resolve) => setTimeout(resolve, 3_000, 'later'))
    const given = id.connect({ timeout: 300 }).catch((failure: unknown) => failure)
    expect(await Promise.race([given, later])).toMatchObject({ code: 'ETIMEDOUT', verb: 'rdma_connect' })
    id.close()
    protectionDomain.close()
    listener.close()
  })
})

/** Garbage is collected, and most that closes has closed: descriptors stop going away. */
async function settled(): Promise<void> {
  let before = -1
  let now = openDescriptors()
  for (let i = 0; i < 50 && now !== before; i++) {
    collect()
    before = now
    await new Promise((resolve) => setTimeout(resolve, 50))
    now = openDescriptors()
  }
}
