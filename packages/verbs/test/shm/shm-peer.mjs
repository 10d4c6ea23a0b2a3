// A peer for shm-reach.test.ts: listens at its first argument, with 1 MiB that others may reach and one receive, and says
// what becomes of each connection. With a second argument it becomes that user first; `connect` has it connect there.
import { writeSync } from 'node:fs'
import { ConnectionId, Listener } from '../../dist/index.js'

const [uri, user] = process.argv.slice(2)
const say = (line) => writeSync(1, `${line}\n`)
if (user === 'connect') {
  const id = await ConnectionId.resolve(uri)
  const sendQueue = id.context.createCompletionQueue({ entries: 64 })
  id.createQueuePair(id.context.allocateProtectionDomain(), { sendQueue })
  say(
    await id.connect().then(
      () => 'connected',
      (error) => `${error.code}: ${error.message}`,
    ),
  )
  process.exit(0)
}
if (user !== undefined) {
  process.setgid(Number(user))
  process.setuid(Number(user))
}
await Listener.listen(uri, async ({ id }) => {
  const domain = id.context.allocateProtectionDomain()
  const region = await domain.allocateMemoryRegion(2 ** 20, ['remote-read', 'remote-write'])
  const queue = id.context.createCompletionQueue({ entries: 64 })
  const queuePair = id.createQueuePair(domain, { sendQueue: queue })
  queuePair.postReceive({ data: [{ region, length: 2 ** 16 }] })
  const told = Buffer.alloc(12)
  told.writeBigUInt64LE(region.address)
  told.writeUInt32LE(region.remoteKey, 8)
  await id.accept({ privateData: told }).then(
    () => say('accepted'),
    (error) => say(error.code),
  )
})
say('listening')
