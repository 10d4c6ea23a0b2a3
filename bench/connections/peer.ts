// One of the two processes of a sample: requests of 64 B over many connections, each with one outstanding.
//   node peer.js listen TRANSPORT AT COUNT                  prints `listening URI`, runs until SIGTERM
//   node peer.js connect TRANSPORT URI COUNT MILLISECONDS   prints one line of JSON
import { readFileSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { RingServer } from '@rdmakit/ring-transport'
import { defaultRequests } from '../ring/default-ring.js'
import type { Requester, RequestTransport } from '../ring/endpoint.js'
import { netRequests } from '../ring/net.js'
import { answering } from '../ring/requests.js'

const SIZE = 64
/** Connections that are being made at a time. */
const AT_ONCE = 50
/** Requests of each connection between the two looks at its memory, beyond those that are timed. */
const USED = 100
/** Round trips of which the time is kept, the latest ones. */
const KEPT = 2 ** 20

const [role, name, where, countText, milliseconds] = process.argv.slice(2) as string[]
const count = Number(countText)

/** The server's default is 256 connections. */
const ringRequests: RequestTransport = {
  ...defaultRequests,
  listen: async (at, answer) =>
    await RingServer.listen(at, {
      maxConnections: count + 1,
      onConnection: (connection) => connection.handle(({ data, length }) => answer(data, 0, length)),
    }),
}

const transport = name === 'ring' ? ringRequests : netRequests

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

/** Memory of this process without what V8 has yet to collect, in KiB; what it shares with others by its part. */
function memory(): number {
  collectGarbage()
  const [, kibibytes] = /^Pss: +(\d+) kB$/m.exec(readFileSync('/proc/self/smaps_rollup', 'utf8')) ?? []
  return Number(kibibytes)
}

async function connectAll(uri: string): Promise<Requester[]> {
  const all: Requester[] = []
  while (all.length < count) {
    const some = Array.from({ length: Math.min(AT_ONCE, count - all.length) }, () => transport.connect(uri))
    all.push(...(await Promise.all(some)))
  }
  return all
}

async function connect(uri: string): Promise<void> {
  const question = Buffer.alloc(SIZE)
  const times = new Float64Array(KEPT).fill(0)
  const use = async (requester: Requester) => {
    for (let i = 0; i < USED; i++) await requester.request(question)
  }
  // The first loads the addon, starts its threads, and asks as often as all will: V8's heap grows by that, once.
  const first = await transport.connect(uri)
  await Promise.all(Array.from({ length: count }, () => use(first)))
  const before = memory()
  const all = await connectAll(uri)
  const kibibytesEach = () => (memory() - before) / count
  const kibibytesIdle = kibibytesEach()
  await first.close()

  let asked = 0
  const begin = performance.now()
  const end = begin + Number(milliseconds)
  const oneByOne = async (requester: Requester) => {
    for (let from = performance.now(); from < end; ) {
      const answer = await requester.request(question)
      if (answer.length !== SIZE) throw new Error(`an answer of ${answer.length} bytes, not ${SIZE}`)
      const now = performance.now()
      times[asked++ % KEPT] = now - from
      from = now
    }
  }
  await Promise.all(all.map(oneByOne))
  const seconds = (performance.now() - begin) / 1000
  const sorted = times.subarray(0, Math.min(asked, KEPT)).sort()
  const percentile = (part: number) => 1000 * (sorted[Math.floor(part * (sorted.length - 1))] as number)
  await Promise.all(all.map(use))
  const result = {
    requestsPerSecond: asked / seconds,
    p50: percentile(0.5),
    p99: percentile(0.99),
    kibibytesIdle,
    kibibytesUsed: kibibytesEach(),
  }
  console.log(JSON.stringify(result))
}

if (role === 'listen')
  console.log(`listening ${(await transport.listen(where as string, answering(SIZE))).uri}`)
else {
  await connect(where as string)
  process.exit(0)
}
