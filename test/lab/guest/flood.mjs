// Datagrams for a port of ADDRESS where nobody listens, as many as go, until it is ended: what a host that swaps over TCP
// has to receive beside its pages.
//
//   node flood.mjs ADDRESS
import { createSocket } from 'node:dgram'

const [address] = process.argv.slice(2)
/** What a packet of Ethernet holds. */
const datagram = Buffer.alloc(1400, 0xf1)
const socket = createSocket('udp4')
// Refused, or no room to send: the next one may go.
socket.on('error', () => {})
let sent = 0
const send = () => {
  socket.send(datagram, 9, address, () => {
    sent++
    setImmediate(send)
  })
}
for (let i = 0; i < 16; i++) send()
console.log('flooding')
process.on('SIGTERM', () => {
  console.log(`sent ${sent}`)
  process.exit(0)
})
