// As little of an NBD client as it takes to write a block and read it back (doc/proto.md of NetworkBlockDevice/nbd).
import { once } from 'node:events'
import { connect } from 'node:net'

const OPTION_EXPORT_NAME = 1
const READ = 0
const WRITE = 1
const DISCONNECT = 2

async function open(path) {
  const socket = connect(path)
  await once(socket, 'connect')
  const chunks = socket[Symbol.asyncIterator]()
  let rest = Buffer.alloc(0)
  const take = async (length) => {
    while (rest.length < length) {
      const { value, done } = await chunks.next()
      if (done) throw new Error('the server has closed the connection')
      rest = Buffer.concat([rest, value])
    }
    const taken = rest.subarray(0, length)
    rest = rest.subarray(length)
    return taken
  }
  return { socket, take }
}

/** Writes `block` at `offset`, and reads it back over another connection. @returns what was read */
export async function throughVolume(path, offset, block) {
  const request = (command) => {
    const header = Buffer.alloc(28)
    header.writeUInt32BE(0x25609513)
    header.writeUInt16BE(command, 6)
    header.writeBigUInt64BE(BigInt(offset), 16)
    header.writeUInt32BE(block.length, 24)
    return header
  }
  const transmission = async () => {
    const { socket, take } = await open(path)
    const greeting = await take(18)
    if (greeting.toString('latin1', 0, 16) !== 'NBDMAGICIHAVEOPT') throw new Error('that is no NBD server')
    const option = Buffer.alloc(20)
    option.writeUInt32BE(3) // fixed newstyle, no zeroes
    option.write('IHAVEOPT', 4)
    option.writeUInt32BE(OPTION_EXPORT_NAME, 12)
    socket.write(option)
    await take(10)
    return { socket, take }
  }
  const answered = async (take) => {
    const error = (await take(16)).readUInt32BE(4)
    if (error !== 0) throw new Error(`the server has answered with error ${error}`)
  }
  const writer = await transmission()
  writer.socket.write(Buffer.concat([request(WRITE), block]))
  await answered(writer.take)
  writer.socket.end(request(DISCONNECT))
  const reader = await transmission()
  reader.socket.write(request(READ))
  await answered(reader.take)
  const read = Buffer.from(await reader.take(block.length))
  reader.socket.end(request(DISCONNECT))
  return read
}
