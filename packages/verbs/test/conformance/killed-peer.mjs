// A peer for scale.test.ts: connects, says so with a SEND, and stays until it is killed.
import { ConnectionId } from '../../dist/index.js'

const id = await ConnectionId.resolve(process.argv[2], { timeout: 50_000 })
const protectionDomain = id.context.allocateProtectionDomain()
const region = await protectionDomain.allocateMemoryRegion(4096, ['remote-read', 'remote-write'])
const queuePair = id.createQueuePair(protectionDomain, {
  sendQueue: id.context.createCompletionQueue({ entries: 16 }),
})
await id.connect({ timeout: 50_000 })
queuePair.postSend({ opcode: 'send', data: [{ region, length: 64 }] })
process.stdin.resume()
