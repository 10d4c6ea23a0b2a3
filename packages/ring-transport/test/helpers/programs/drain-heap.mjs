// Sends messages from JavaScript to JavaScript in one process, and prints how the heap grew meanwhile.
// `drain-heap.mjs <uri> <messages>`. Run with --expose-gc.
import { PerformanceObserver } from 'node:perf_hooks'
import { Poller, RingConnection, RingServer } from '@rdmakit/ring-transport'

const WARM_UP = 300_000
const MESSAGES = Number(process.argv[3])
const BYTES = 64
/** Messages that a drain() takes: what one of them allocates must show, too. */
const BURST = 16

/** Both ends of a connection in this process. */
async function connect(options) {
  let accepted
  const arrived = new Promise((resolve) => {
    accepted = resolve
  })
  const server = await RingServer.listen(process.argv[2], { ...options[0], onConnection: accepted })
  const a = await RingConnection.connect(server.uri, options[1])
  const b = await arrived
  const close = async () => {
    await a.close({ drain: false })
    await server.close({ drain: false })
  }
  return { a, b, close }
}

const probe = await connect([{}, {}])
const pollers = [0, 1].map(() => new Poller(probe.a.context, { mode: 'caller' }))
await probe.close()
const { a, b, close } = await connect(pollers.map((poller) => ({ poller })))

let received = 0
let wrong = 0
const outgoing = a.outgoing
const take = (message) => {
  if (message.length !== BYTES || message.bytes[message.offset] !== (received & 0xff)) wrong++
  received++
}

function run(messages) {
  const end = received + messages
  let sent = received
  while (received < end) {
    for (let burst = 0; burst < BURST && sent < end; burst++) {
      const at = a.place(BYTES)
      if (at < 0) break
      outgoing[at] = sent & 0xff
      a.commit(0)
      sent++
    }
    a.flush()
    b.drain(take)
    pollers[1].drain()
  }
}

run(WARM_UP)
const collections = []
new PerformanceObserver((list) => collections.push(...list.getEntries())).observe({ entryTypes: ['gc'] })
globalThis.gc()
const before = process.memoryUsage().heapUsed
const began = performance.now()
run(MESSAGES)
const grown = process.memoryUsage().heapUsed - before
// Entries come with a later turn of the event loop, that of the collection above at the latest then.
while (collections.length === 0) await new Promise((resolve) => setImmediate(resolve))
const meanwhile = collections.filter(({ startTime }) => startTime > began)
console.log(JSON.stringify({ messages: MESSAGES, wrong, grown, collections: meanwhile.length }))
await close()
for (const poller of pollers) poller.close()
