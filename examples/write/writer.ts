// The active end: writes into the target's memory. node examples/dist/write/writer.js [uri] [text]
import { ConnectionId } from '@rdmakit/verbs'

const uri = process.argv[2] ?? 'iwarp://127.0.0.1:7471'
const text = Buffer.from(process.argv[3] ?? 'hello')

const id = await ConnectionId.resolve(uri)
const protectionDomain = id.context.allocateProtectionDomain()
const region = await protectionDomain.allocateMemoryRegion(4096)
const channel = id.context.createCompletionChannel()
const completionQueue = id.context.createCompletionQueue({ entries: 16, channel })
const queuePair = id.createQueuePair(protectionDomain, { sendQueue: completionQueue })
const target = Buffer.from(await id.connect())

new Uint8Array(region.buffer).set(text)
queuePair.postSend({
  opcode: 'rdma-write',
  data: [{ region, length: text.length }],
  remoteAddress: target.readBigUInt64LE(),
  remoteKey: target.readUInt32LE(8),
})
const [completion] = await completionQueue.wait()
console.log(`rdma-write of ${text.length} bytes: ${completion?.status}`)
id.disconnect()
id.close()
channel.close()
