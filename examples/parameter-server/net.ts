// Over Node's sockets: the number of a slice and its length, four bytes each, then its elements.
//
// Copies of a byte: pushed, one by this program, which puts the pieces of a slice together; pulled, one, straight
// into the model. Beneath, two each way: in and out of the socket.
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type NetConnectOpts, type Socket } from 'node:net'
import { bytesOf, elementsOf, PARAMETERS, part, SLICES, sliceOf } from './model.js'
import type { ToWorker, Transport } from './transport.js'

const HEADER = 8

/** Puts frames together that come in pieces, each in the memory that `place` names for it. */
function read(socket: Socket, place: (slice: number) => Uint8Array, done: (slice: number) => void): void {
  const header = Buffer.alloc(HEADER)
  let headerFilled = 0
  let target: Uint8Array = header
  let filled = 0
  let slice = 0

  socket.on('data', (chunk) => {
    for (let at = 0; at < chunk.length; ) {
      if (headerFilled < HEADER) {
        const copied = chunk.copy(header, headerFilled, at)
        headerFilled += copied
        at += copied
        if (headerFilled < HEADER) return
        slice = header.readUInt32LE(0)
        target = place(slice)
        filled = 0
        if (header.readUInt32LE(4) !== target.length) throw new Error(`slice ${slice} has another length`)
      }
      const copied = chunk.copy(target, filled, at)
      filled += copied
      at += copied
      if (filled < target.length) return
      headerFilled = 0
      done(slice)
    }
  })
}

/** The elements are written from where they are, with their header by one writev(2). */
function write(socket: Socket, slice: number, elements: Float32Array): void {
  const header = Buffer.allocUnsafe(HEADER)
  header.writeUInt32LE(slice, 0)
  header.writeUInt32LE(elements.byteLength, 4)
  socket.cork()
  socket.write(header)
  socket.write(bytesOf(elements))
  socket.uncork()
}

function addressOf(uri: string): NetConnectOpts {
  const { protocol, hostname, port, pathname } = new URL(uri)
  return protocol === 'unix:'
    ? { path: pathname }
    : { host: hostname, port: Number(port || 0), noDelay: true }
}

const MOST_BYTES = 4 * Math.max(...SLICES.map(({ length }) => length))

export const net: Transport = {
  async listen(uri, events) {
    const sockets = new Set<Socket>()
    const server = createServer({ noDelay: true }, (socket) => {
      const worker: ToWorker = { pull: (slice, weights) => write(socket, slice, weights) }
      const bytes = new Uint8Array(MOST_BYTES)
      const place = (slice: number) => bytes.subarray(0, 4 * sliceOf(slice).length)
      read(socket, place, (slice) => events.pushed(slice, elementsOf(place(slice), sliceOf(slice))))
      sockets.add(socket)
      socket.on('error', () => socket.destroy())
      socket.once('close', () => {
        sockets.delete(socket)
        events.left(worker)
      })
      events.joined(worker)
    })
    server.listen(addressOf(uri))
    await once(server, 'listening')
    const { port } = server.address() as AddressInfo
    return {
      uri: uri.startsWith('unix:') ? uri : `tcp://${new URL(uri).hostname}:${port}`,
      close: async () => {
        server.close()
        for (const socket of sockets) socket.destroy()
      },
    }
  },

  async connect(uri, weights, pulled, lost) {
    const socket = connect(addressOf(uri))
    await once(socket, 'connect')
    socket.once('error', (reason) => lost(reason))
    socket.once('close', () => lost(new Error('the server left')))
    read(socket, (slice) => bytesOf(part(weights, sliceOf(slice))), pulled)
    const gradients = new Float32Array(PARAMETERS)
    return {
      push(number, fill) {
        const gradient = part(gradients, sliceOf(number))
        fill(gradient)
        write(socket, number, gradient)
        return socket.writableNeedDrain ? once(socket, 'drain').then(() => {}) : undefined
      },
      close: async () => {
        socket.end()
        await once(socket, 'close')
      },
    }
  },
}
