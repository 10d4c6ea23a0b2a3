// The passive end: lends 4 KiB and says where they are. npm run build && node examples/dist/write/target.js
import { Listener, type MemoryRegion } from '@rdmakit/verbs'

const uri = process.argv[2] ?? 'iwarp://127.0.0.1:7471'

const listener = await Listener.listen(uri, async ({ id }) => {
  const protectionDomain = id.context.allocateProtectionDomain()
  const region = await protectionDomain.allocateMemoryRegion(4096, ['remote-write'])
  const completionQueue = id.context.createCompletionQueue({ entries: 1 })
  id.createQueuePair(protectionDomain, { sendQueue: completionQueue })
  await id.accept({ privateData: whereabouts(region) })
  await id.disconnected
  console.log('the peer wrote:', Buffer.from(region.buffer, 0, 64).toString().replace(/\0+$/, ''))
  id.close()
  protectionDomain.close()
  listener.close()
})
console.log(`listening ${listener.uri}`)

/** Address and key as the writer needs them: 8 bytes and 4 bytes, little-endian. */
function whereabouts(region: MemoryRegion): Buffer {
  const bytes = Buffer.alloc(12)
  bytes.writeBigUInt64LE(region.address)
  bytes.writeUInt32LE(region.remoteKey, 8)
  return bytes
}
