// One of the two processes of a case of the ring benchmark.
//   node peer.js listen TRANSPORT AT SIZE                 prints `listening URI`, runs until SIGTERM
//   node peer.js connect TRANSPORT URI SIZE MILLISECONDS [both|latency|rate]   prints one line of JSON
import type { RequestTransport, Transport } from './endpoint.js'
import { answering, requests } from './requests.js'
import type { RingChoice } from './ring.js'
import { type Driver, latency, messages, rate, respond } from './traffic.js'

const [, , role, name, where, sizeText, milliseconds, tests = 'both', warmUp] = process.argv as string[]
const size = Number(sizeText)

// Each is loaded when it is measured: an addon that is not needed takes its time too.
const ring = async (choice: Omit<RingChoice, 'size'>) => (await import('./ring.js')).ring({ ...choice, size })
const TRANSPORTS: Readonly<Record<string, () => Promise<Transport>>> = {
  default: async () => (await import('./default-ring.js')).defaultRing,
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
const REQUESTS: Readonly<Record<string, () => Promise<RequestTransport>>> = {
  'default-requests': async () => (await import('./default-ring.js')).defaultRequests,
  grpc: async () => (await import('./grpc.js')).grpc,
  'net-requests': async () => (await import('./net.js')).netRequests,
}

interface Traffic {
  /** Prints where it listens. */
  listen(): Promise<void>
  connect(): Promise<Driver & AsyncDisposable>
}

const say = (uri: string) => console.log(`listening ${uri}`)

async function trafficOf(): Promise<Traffic> {
  const transport = await TRANSPORTS[name as string]?.()
  if (transport !== undefined)
    return {
      async listen() {
        const { uri, connected } = await transport.listen(where as string)
        say(uri)
        await respond(await connected, size)
      },
      async connect() {
        const endpoint = await transport.connect(where as string)
        return { ...messages(endpoint, size), [Symbol.asyncDispose]: () => endpoint.close() }
      },
    }
  const asked = await REQUESTS[name as string]?.()
  if (asked !== undefined)
    return {
      listen: async () => say((await asked.listen(where as string, answering(size))).uri),
      async connect() {
        const requester = await asked.connect(where as string)
        return { ...requests(requester, size), [Symbol.asyncDispose]: () => requester.close() }
      },
    }
  const known = Object.keys({ ...TRANSPORTS, ...REQUESTS }).join(', ')
  console.error(`unknown transport "${name}"; known: ${known}`)
  process.exit(2)
}

const traffic = await trafficOf()
if (role === 'listen') await traffic.listen()
else {
  {
    await using driver = await traffic.connect()
    const time = Number(milliseconds)
    const warm = Number(warmUp ?? milliseconds)
    const result = {
      ...(tests !== 'rate' && { latency: await latency(driver, time, warm) }),
      ...(tests !== 'latency' && { rate: await rate(driver, size, time, warm) }),
    }
    console.log(JSON.stringify(result))
  }
  process.exit(0)
}
