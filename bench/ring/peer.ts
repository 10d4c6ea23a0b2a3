// One of the two processes of a case of the ring benchmark.
//   node peer.js listen TRANSPORT AT SIZE                 prints `listening URI`, runs until SIGTERM
//   node peer.js connect TRANSPORT URI SIZE MILLISECONDS [both|latency|rate]   prints one line of JSON
import type { Transport } from './endpoint.js'
import { net } from './net.js'
import { ring } from './ring.js'
import { sendReceive } from './send-receive.js'
import { latency, rate, respond } from './traffic.js'
import { zeromq } from './zeromq.js'

const [, , role, name, where, sizeText, milliseconds, tests = 'both'] = process.argv as string[]
const size = Number(sizeText)

const TRANSPORTS: Readonly<Record<string, () => Transport>> = {
  net: () => net(false),
  'net-coalesced': () => net(true),
  zeromq: () => zeromq,
  polling: () => ring({ mode: 'caller', size, polls: 'copy' }),
  'event-loop': () => ring({ mode: 'caller', size }),
  adaptive: () => ring({ mode: 'adaptive', size }),
  // The steps from interrupts and copies to polling without copies.
  'send-receive': () => sendReceive(size),
  'ring-event': () => ring({ mode: 'event', size, receive: 'copies' }),
  'ring-poll': () => ring({ mode: 'poll', size, receive: 'copies' }),
  'zero-copy': () => ring({ mode: 'caller', size, polls: 'zero-copy' }),
}

const transport = TRANSPORTS[name as string]
if (transport === undefined) {
  console.error(`unknown transport "${name}"; known: ${Object.keys(TRANSPORTS).join(', ')}`)
  process.exit(2)
}

if (role === 'listen') {
  const { uri, connected } = await transport().listen(where as string)
  console.log(`listening ${uri}`)
  await respond(await connected, size)
} else {
  const endpoint = await transport().connect(where as string)
  const time = Number(milliseconds)
  const result = {
    ...(tests !== 'rate' && { latency: await latency(endpoint, size, time) }),
    ...(tests !== 'latency' && { rate: await rate(endpoint, size, time) }),
  }
  console.log(JSON.stringify(result))
  await endpoint.close()
  process.exit(0)
}
