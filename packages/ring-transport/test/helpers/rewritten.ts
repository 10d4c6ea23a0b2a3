import { setImmediate as turn } from 'node:timers/promises'
import { ConnectionId } from '@rdmakit/verbs'
import { TYPE } from '../../src/native.js'
import { connectBare } from './bare-end.js'
import { startPeer } from './processes.js'

/** How a process reads bytes that its peer rewrites meanwhile. */
export type Reader = 'text' | 'view' | 'request'

const LENGTH = 2 ** 16
const HEADER = 16
const DEADLINE_MS = 50_000

/**
 * Another process takes a message and reads it as text repeatedly, while this one, a peer with bare verbs,
 * keeps writing to the message's memory: LENGTH characters of one byte each, then half as many of two. A
 * decoder that measures the one and writes the other crashes the process.
 * @param torn times that the other process must read some of both
 * @throws when the process has ended
 */
export async function rewrite(uri: string, reader: Reader, torn: number): Promise<Record<string, number>> {
  const options = { uri, length: LENGTH, torn, deadlineMs: DEADLINE_MS }
  const victim = await startPeer(reader, options, './programs/rewritten.mjs')
  const id = await ConnectionId.resolve(victim.uri)
  const pd = id.context.allocateProtectionDomain()
  try {
    const channel = id.context.createCompletionChannel()
    const sendQueue = id.context.createCompletionQueue({ entries: 64, channel })
    const receiveQueue = id.context.createCompletionQueue({ entries: 64 })
    const region = await pd.allocateMemoryRegion(4 * LENGTH, ['remote-write'])
    const queuePair = id.createQueuePair(pd, { sendQueue, receiveQueue, maxReceive: 32 })
    for (let i = 0; i < 32; i++) queuePair.postReceive({ data: [{ region, length: 8 }] })
    const ring = await connectBare(id, region, 2)
    const bytes = Buffer.from(region.buffer)
    // The frame's header, and behind it one text; in another place the other text.
    const [frame, other] = [LENGTH, 3 * LENGTH]
    bytes.fill(0, frame, frame + HEADER)
    bytes.writeUInt32LE(LENGTH, frame)
    bytes.writeUInt16LE(reader === 'request' ? TYPE.request : TYPE.data, frame + 4)
    bytes.fill('a', frame + HEADER, frame + HEADER + LENGTH)
    bytes.fill('é', other, other + LENGTH)
    const { remoteKey } = ring
    queuePair.postSend({
      opcode: 'rdma-write-with-immediate',
      immediate: (LENGTH + HEADER + 63) >> 6,
      data: [{ region, offset: frame, length: HEADER + LENGTH }],
      remoteAddress: ring.address,
      remoteKey,
    })
    const told = victim.told()
    let over = false
    void told
      .catch(() => {})
      .finally(() => {
        over = true
      })
    const remoteAddress = ring.address + BigInt(HEADER)
    await sendQueue.wait()
    while (!over) {
      for (const offset of [other, frame + HEADER])
        queuePair.postSend({
          opcode: 'rdma-write',
          data: [{ region, offset, length: LENGTH }],
          remoteAddress,
          remoteKey,
        })
      for (let left = 2; left > 0; ) left -= (await sendQueue.wait()).length
      // Operations that complete at once leave no turn in which to hear the other process.
      await turn()
    }
    return (await told) as unknown as Record<string, number>
  } finally {
    id.close()
    pd.close()
    await victim.stop()
  }
}
