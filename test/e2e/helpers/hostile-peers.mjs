// Peers without a key, of every kind, at a swap-server's iwarp port: node hostile-peers.mjs PORT COUNT. Each comes back
// when it is thrown out. Prints a line each half second: how many are connected, and how often one was thrown out.
import { randomBytes } from 'node:crypto'
import { connect } from 'node:net'

const [port, count] = process.argv.slice(2).map(Number)
/** The pause of a peer that was thrown out. */
const REST_MS = Number(process.argv[4] ?? 10)

/** An MPA request (RFC 5044 §7.1), with enhanced data in revision 2 (RFC 6581 §4). */
function mpa(data, { enhanced }) {
  const head = Buffer.alloc(20)
  head.write('MPA ID Req Frame', 0, 'latin1')
  head[16] = enhanced ? 0x50 : 0x40
  head[17] = enhanced ? 2 : 1
  // Peer to peer, ready to receive by WRITE: then nothing comes.
  const depths = enhanced ? Buffer.from([0x80, 0x10, 0x80, 0x10]) : Buffer.alloc(0)
  head.writeUInt16BE(depths.length + data.length, 18)
  return Buffer.concat([head, depths, data])
}

/** A ring handshake (packages/ring-transport/src/setup/handshake.ts), whose ring is nowhere. */
function ring(log2Capacity, ticket = Buffer.alloc(0)) {
  const bytes = Buffer.alloc(36)
  bytes.writeUInt32BE(0x72646b52, 0)
  bytes[4] = 2
  bytes[5] = 1
  bytes[6] = log2Capacity
  bytes[7] = ticket.length
  bytes.writeUInt16BE(128, 8)
  bytes.writeUInt32BE(0x01000101, 12)
  bytes.writeBigUInt64BE(0x7f0000000000n, 16)
  return Buffer.concat([bytes, ticket])
}

const data = () => Buffer.concat([Buffer.from('RKPG'), Buffer.from([1, 0, 0, 0]), randomBytes(16)])

const KINDS = [
  () => Buffer.alloc(0), // silent
  () => mpa(ring(16), { enhanced: false }).subarray(0, 30), // half a request
  () => randomBytes(200),
  () => mpa(ring(16), { enhanced: true }), // half made: its first FPDU never comes
  () => mpa(ring(16), { enhanced: false }), // made, and says no hello
  () => mpa(ring(20), { enhanced: false }), // with the largest ring that is taken
  () => mpa(ring(26), { enhanced: false }), // with a larger one
  () => mpa(ring(16, randomBytes(20)), { enhanced: false }), // with a ticket of no session
  () => mpa(data(), { enhanced: false }), // a data connection with an unknown token
  () => Buffer.concat([mpa(ring(16), { enhanced: false }), randomBytes(500)]), // garbage behind its request
]

let connected = 0
let thrownOut = 0

function come(kind) {
  const socket = connect(port, '127.0.0.1')
  let there = false
  socket.on('error', () => {}) // being thrown out is the point
  socket.on('data', () => {})
  socket.on('connect', () => {
    there = true
    connected++
    socket.write(KINDS[kind]())
  })
  socket.on('close', () => {
    if (there) connected--
    thrownOut++
    setTimeout(come, REST_MS, kind)
  })
}

for (let at = 0; at < count; at++) come(at % KINDS.length)
setInterval(() => process.stdout.write(`connected ${connected} thrownOut ${thrownOut}\n`), 500)
// It ends with the process that started it.
process.stdin.resume().on('end', () => process.exit())
