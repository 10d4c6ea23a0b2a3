// A tenant that does its worst to others: node hostile-tenant.mjs KIND URI SECRET. KIND: sessions,
// connections, requests, garbage. It ends with the process that started it. Each half second it prints a
// line: how often it did so.
import { randomBytes } from 'node:crypto'
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises'
import { SwapServerSession } from '@rdmakit/swap-server'
import { ConnectionId } from '@rdmakit/verbs'

const [kind, uri, secret] = process.argv.slice(2)
const who = { tenant: 'hostile', key: { id: '1', secret: Buffer.from(secret, 'hex') }, linger: 600_000 }
let count = 0

const open = () => SwapServerSession.open([uri], who)

/** A queue pair of its own, of which the server knows what `privateData` says. */
async function connected(privateData) {
  const id = await ConnectionId.resolve(uri)
  const domain = id.context.allocateProtectionDomain()
  const queue = id.context.createCompletionQueue({ entries: 64 })
  const close = () => {
    id.close()
    queue.close()
    domain.close()
  }
  try {
    const queuePair = id.createQueuePair(domain, { sendQueue: queue, maxSend: 64 })
    const answer = await id.connect({ privateData })
    return { id, domain, queue, queuePair, answer, close }
  } catch (failure) {
    close()
    throw failure
  }
}

const KINDS = {
  /** Each is left, so that it lingers, and another is opened. */
  async sessions() {
    const session = await open()
    await session.leave()
  },
  /** As many data connections as possible, repeatedly. */
  async connections() {
    const session = await open()
    const domain = session.context.allocateProtectionDomain()
    const queue = session.context.createCompletionQueue({ entries: 64 })
    try {
      for (;;) {
        await session.connectData(domain, { sendQueue: queue })
        count++
      }
    } finally {
      await session.close().catch(() => {})
      queue.close()
      domain.close()
    }
  },
  /** Questions without end, whose answers it hardly reads. */
  async requests() {
    const session = await open()
    try {
      for (;;) {
        await Promise.all(Array.from({ length: 64 }, () => session.query()))
        count += 64
      }
    } finally {
      await session.close().catch(() => {})
    }
  },
  /** Anything into the ring that it was given, and anything behind it. */
  async garbage() {
    const hello = Buffer.alloc(36)
    hello.writeUInt32BE(0x72646b52, 0)
    hello.set([2, 1, 16], 4)
    hello.writeUInt16BE(128, 8)
    hello.writeUInt32BE(0x01000101, 12)
    hello.writeBigUInt64BE(0x7f0000000000n, 16)
    const { domain, queue, queuePair, answer, close } = await connected(hello)
    try {
      const region = await domain.allocateMemoryRegion(4096)
      const view = Buffer.from(answer)
      const length = 2 ** view[6]
      for (let i = 0; i < 32; i++) {
        new Uint8Array(region.buffer).set(randomBytes(4096))
        const remoteAddress =
          view.readBigUInt64BE(16) + BigInt(64 * Math.floor(Math.random() * (length / 64 - 64)))
        const opcode = i % 2 === 0 ? 'rdma-write' : 'rdma-write-with-immediate'
        queuePair.postSend({
          opcode,
          data: [{ region, length: 64 }],
          remoteAddress,
          remoteKey: view.readUInt32BE(12),
          ...(i % 2 === 0 ? {} : { immediate: Math.floor(Math.random() * 2 ** 32) }),
        })
        for (let looks = 0; looks < 1_000 && queue.poll().length === 0; looks++) await turn()
      }
    } finally {
      close()
    }
  },
}

setInterval(() => process.stdout.write(`count ${count}\n`), 500)
process.stdin.resume().on('end', () => process.exit())
for (;;) {
  try {
    await KINDS[kind]()
    count++
  } catch (failure) {
    if (process.env.RDMAKIT_TALK === '1') console.error(failure.message)
    // Refused: at once again, but for the turn of others in this process.
    await delay(2)
  }
}
