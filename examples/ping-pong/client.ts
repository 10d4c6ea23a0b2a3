// Times round trips one by one. node examples/dist/ping-pong/client.js [uri] [round trips] [bytes]
import { RingConnection, type RingView } from '@rdmakit/ring-transport'
import { printHistogram } from './histogram.js'
import { options, poll } from './polling.js'

const [uri = 'iwarp://127.0.0.1:7473', count = '100000', bytes = '64'] = process.argv.slice(2)
const rounds = Number(count)
const warmUp = Math.ceil(rounds / 10)

const connection = await RingConnection.connect(uri, options)
const ping = new Uint8Array(Number(bytes))
const times = new Float64Array(rounds) // microseconds

let round = 0
let sent = 0

function send(): void {
  ping.fill(round)
  // `immediate`, 32 bits that come with any message, tells which one it is.
  if (!connection.send(ping, round)) throw new Error('no room for a message while none is on its way')
  connection.flush()
}

function take({ length, immediate }: RingView): void {
  const now = performance.now()
  if (length !== ping.length || immediate !== round) throw new Error(`message ${round} came back changed`)
  if (round >= warmUp) times[round - warmUp] = (now - sent) * 1000
  round++
  if (round === warmUp + rounds) return
  sent = performance.now()
  send()
}

sent = performance.now()
send()
await poll(connection, take, () => round === warmUp + rounds)
if (round < warmUp + rounds) throw new Error(`the connection ended after ${round} round trips`)
console.log(`${rounds} round trips of ${ping.length} bytes over ${connection.peerUri}`)
printHistogram(times)
await connection.close()
