// The TypeScript side of `npm run bench -- verbs`: 64-byte RDMA WRITEs from prepared slots into the memory
// of a listening verbs-pingpong, which it tells what its native counterpart would (struct Plan there).
//   node verbs-slots.js URI one|many ITERATIONS
// `one` posts and polls one signaled WRITE at a time; `many` posts 64 with one call.
import { ConnectionId } from '@rdmakit/verbs'

const SIZE = 64
const MANY = 64
/** An index of verbs-traffic.h's kTests: the target does nothing but wait for the farewell. */
const WRITE_BANDWIDTH = 2

const [uri, mode, count] = process.argv.slice(2) as [string, 'one' | 'many', string]
const iterations = Number(count)

const id = await ConnectionId.resolve(uri)
const protectionDomain = id.context.allocateProtectionDomain()
const queue = id.context.createCompletionQueue({ entries: 1024, progress: 'manual' })
const region = await protectionDomain.allocateMemoryRegion(SIZE * MANY, ['remote-write'])
const queuePair = id.createQueuePair(protectionDomain, {
  sendQueue: queue,
  maxSend: 256,
  maxInlineData: SIZE,
})

// struct Plan: region, test, size, warmup, iterations, depth, chain
const plan = Buffer.alloc(40)
plan.writeBigUInt64LE(region.address)
plan.writeUInt32LE(region.remoteKey, 8)
for (const [i, value] of [WRITE_BANDWIDTH, SIZE * MANY, 0, iterations, 1, MANY].entries())
  plan.writeUInt32LE(value, 16 + i * 4)
const target = Buffer.from(await id.connect({ privateData: plan }))
const address = target.readBigUInt64LE()
const remoteKey = target.readUInt32LE(8)

const slots = queuePair.createSendSlots(MANY, [region])
const done = queue.createCompletionArray(64)
for (let i = 0; i < MANY; i++)
  slots.set(i, {
    opcode: 'rdma-write',
    region,
    offset: i * SIZE,
    length: SIZE,
    remoteAddress: address + BigInt(i * SIZE),
    remoteKey,
    inline: true,
    signaled: mode === 'one' || i % 32 === 31,
  })

/** Takes what is done, and stops at what failed. */
function poll(): number {
  const taken = done.poll()
  for (let i = 0; i < taken; i++)
    if (!done.succeeded(i)) throw new Error(`a WRITE ended as ${done.status(i)}`)
  return taken
}

function one(rounds: number): void {
  for (let i = 0; i < rounds; i++) {
    slots.setLocal(0, (i % MANY) * SIZE, SIZE)
    slots.post(0, 1)
    while (poll() === 0);
  }
}

function many(rounds: number): void {
  for (let i = 0; i < rounds; i += MANY) {
    for (let posted = slots.post(0, MANY); posted < MANY; posted += slots.post(posted, MANY - posted)) poll()
    poll()
  }
}

const run = mode === 'one' ? one : many
run(Math.ceil(iterations / 10))
const begin = process.hrtime.bigint()
run(iterations)
const seconds = Number(process.hrtime.bigint() - begin) / 1e9
console.log(JSON.stringify({ millionPerSecond: iterations / seconds / 1e6 }))

while (poll() > 0);
queuePair.postSend({ opcode: 'send' })
await id.disconnected
id.close()
