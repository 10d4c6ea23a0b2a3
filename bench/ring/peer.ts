// One of the two processes of a case of the ring benchmark.
//   node peer.js listen TRANSPORT AT SIZE                 prints `listening URI`, runs until SIGTERM
//   node peer.js connect TRANSPORT URI SIZE MILLISECONDS [both|latency|rate]   prints one line of JSON
import type { Transport } from './endpoint.js'
import type { RingChoice } from './ring.js'
import { latency, rate, respond } from './traffic.js'

const [, , role, name, where, sizeText, milliseconds, tests = 'both'] = process.argv as string[]
const size = Number(sizeText)

// Each is loaded when it is measured: an addon that is not needed takes its time too.
const ring = async (choice: Omit<RingChoice, 'size'>) => (await import('./ring.js')).ring({ ...choice, size })
const TRANSPORTS: Readonly<Record<string, () => Promise<Transport>>> = {
  net: async () => (await import('./net.js')).net(false),
  'net-coalesced': async () => (await import('./net.js')).net(true),
  zeromq: async () => (await import('./zeromq.js')).zeromq,
  polling: () => ring({ mode: 'caller', polls: 'copy' }),
  'event-loop': () => ring({ mode: 'caller' }),
  'event-loop-copies': () => ring({ mode: 'caller', receive: 'copies' }),
  adaptive: () => ring({ mode: 'adaptive' }),
  // The steps from interrupts and copies to polling without copies.
  'send-receive': async () => (await import('./send-receive.js')).sendReceive(size),
  'ring-event': () => ring({ mode: 'event', receive: 'copies' }),
  'ring-poll': () => ring({ mode: 'poll', receive: 'copies' }),
  'zero-copy': () => ring({ mode: 'caller', polls: 'zero-copy' }),
}

const load = TRANSPORTS[name as string]
if (load === undefined) {
  console.error(`unknown transport "${name}"; known: ${Object.keys(TRANSPORTS).join(', ')}`)
  process.exit(2)
}
const transport = await load()

if (role === 'listen') {
  const { uri, connected } = await transport.listen(where as string)
  console.log(`listening ${uri}`)
  await respond(await connected, size)
} else {
  const endpoint = await transport.connect(where as string)
  const time = Number(milliseconds)
  const result = {
    ...(tests !== 'rate' && { latency: await latency(endpoint, size, time) }),
    ...(tests !== 'latency' && { rate: await rate(endpoint, size, time) }),
  }
  console.log(JSON.stringify(result))
  await endpoint.close()
  process.exit(0)
}
