import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { totalmem } from 'node:os'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { ConnectionId, deferred, Listener } from '../../src/index.js'
import {
  completions,
  connectedPair,
  type End,
  isRxe,
  LISTEN_URI,
  makeEnd,
  openContext,
  unsupported,
} from './pair.js'

const IN_FLIGHT = 10_000
/** An emulated guest makes fewer on the slower of its devices. */
const CONNECTS = 1_000

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
    for (const end of [server, client]) {
      const ids: number[] = []
      const deadline = Date.now() + 60_000
      while (ids.length < depth) {
        if (Date.now() > deadline) throw new Error(`${ids.length} of ${depth} completions after 60 s`)
        for (const { status, workRequestId } of end.completionQueue.poll(256)) {
          expect(status).toBe('success')
          ids.push(Number(workRequestId))
        }
        await new Promise((resolve) => setImmediate(resolve))
      }
      expect(ids).toEqual(Array.from({ length: depth }, (_, i) => i))
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
    using pair = await connectedPair({ bytes: length + 4096 })
    const { client, server } = pair
    // A mark in every page, and at both ends.
    const out = new Float64Array(client.region.buffer, 0, Math.floor(length / 8))
    for (let at = 0; at < out.length; at += 512) out[at] = at + 1
    client.bytes[length - 1] = 77
    server.queuePair.postReceive({ data: [{ region: server.region }] })
    client.queuePair.postSend({ opcode: 'send', data: [{ region: client.region, length }] })
    expect(await completions(server.completionQueue, 1, 120_000)).toMatchObject([
      { status: 'success', byteLength: length },
    ])
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    const arrived = new Float64Array(server.region.buffer, 0, Math.floor(length / 8))
    for (let at = 0; at < arrived.length; at += 512)
      if (arrived[at] !== at + 1) throw new Error(`byte ${at * 8} is wrong`)
    expect(server.bytes[length - 1]).toBe(77)
    expect(server.bytes[length]).toBe(0)
    if (length < max_msg_sz || isRxe(client.context)) return // rxe sends what it says that it does not
    const data = [{ region: client.region, length: length + 1 }]
    expect(() => client.queuePair.postSend({ opcode: 'send', data })).toThrow(
      expect.objectContaining({ verb: 'ibv_post_send', code: 'EINVAL' }),
    )
  })

  it(`${CONNECTS} connections come and go, and leave nothing behind`, async () => {
    const small = { entries: 16, maxSend: 4, maxReceive: 4, bytes: 4096 }
    const cycle = async () => {
      using pair = await connectedPair(small)
      const { client, server } = pair
      server.queuePair.postReceive({ data: [{ region: server.region }] })
      client.queuePair.postSend({ opcode: 'send', data: [{ region: client.region, length: 8 }] })
      expect(await completions(server.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    }
    for (let i = 0; i < 50; i++) await cycle()
    await settled()
    const descriptors = openDescriptors()
    const memory = residentBytes()
    for (let i = 0; i < CONNECTS; i++) await cycle()
    await settled()
    expect(openDescriptors()).toBeLessThanOrEqual(descriptors)
    // What a leak of one page for each connection would be, less the noise of a garbage collected heap.
    expect(residentBytes() - memory).toBeLessThan(CONNECTS * 4096 + 2 ** 24)
  })

  it('a peer that is killed ends the connection, and everything outstanding with it', async () => {
    const { promise: accepted, resolve } = deferred<End>()
    const listener = await Listener.listen(LISTEN_URI, async ({ id }) => {
      const end = await makeEnd(id, {})
      end.queuePair.postReceive({ workRequestId: 1n, data: [{ region: end.region }] })
      end.queuePair.postReceive({ workRequestId: 2n, data: [{ region: end.region }] })
      await id.accept({ timeout: 20_000 })
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
    const listener = await Listener.listen(LISTEN_URI, () => {})
    const id = await ConnectionId.resolve(listener.uri)
    const protectionDomain = id.context.allocateProtectionDomain()
    id.createQueuePair(protectionDomain, { sendQueue: id.context.createCompletionQueue({ entries: 16 }) })
    const started = Date.now()
    await expect(id.connect({ timeout: 300 })).rejects.toMatchObject({
      code: 'ETIMEDOUT',
      verb: 'rdma_connect',
    })
    expect(Date.now() - started).toBeLessThan(5000)
    id.close()
    protectionDomain.close()
    listener.close()
  })
})

/** Once the peers' closes have been seen: descriptors stop going away. */
async function settled(): Promise<void> {
  globalThis.gc?.()
  let before = -1
  let now = openDescriptors()
  for (let i = 0; i < 50 && now !== before; i++) {
    before = now
    await new Promise((resolve) => setTimeout(resolve, 100))
    now = openDescriptors()
  }
}
