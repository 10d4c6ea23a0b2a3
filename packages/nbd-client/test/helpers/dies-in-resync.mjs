// Preloaded into nbd-client: it is killed when its own client, which makes replicas alike, is about to send a WRITE and
// has sent TEST_WRITES of them.
import { Socket } from 'node:net'

const MAGIC = 0x25609513
const WRITE = 1

const { write } = Socket.prototype
let left = Number(process.env.TEST_WRITES)
Socket.prototype.write = function (bytes, ...more) {
  const isWrite = Buffer.isBuffer(bytes) && bytes.length > 28 && bytes.readUInt32BE(0) === MAGIC
  if (isWrite && bytes.readUInt16BE(6) === WRITE && left-- === 0) process.kill(process.pid, 'SIGKILL')
  return write.call(this, bytes, ...more)
}
