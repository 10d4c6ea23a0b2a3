// One of the two processes of a case of the ring benchmark.
//   node peer.js listen TRANSPORT AT SIZE                 prints `listening URI`, runs until SIGTERM
//   node peer.js connect TRANSPORT URI SIZE MILLISECONDS  prints one line of JSON
import type { Transport } from './endpoint.js'
import { net } from './net.js'
import { latency, rate, respond } from './traffic.js'
import { zeromq } from './zeromq.js'

const [, , role, name, where, sizeText, milliseconds] = process.argv as string[]
const size = Number(sizeText)

function transport(): Transport {
  switch (name) {
    case 'net':
      return net(false)
    case 'net-coalesced':
      return net(true)
    case 'zeromq':
      return zeromq
    default:
      throw new Error(`unknown transport "${name}"`)
  }
}

if (role === 'listen') {
  const { uri, connected } = await transport().listen(where as string)
  console.log(`listening ${uri}`)
  await respond(await connected, size)
} else {
  const endpoint = await transport().connect(where as string)
  const time = Number(milliseconds)
  const result = { latency: await latency(endpoint, size, time), rate: await rate(endpoint, size, time) }
  console.log(JSON.stringify(result))
  await endpoint.close()
  process.exit(0)
}
