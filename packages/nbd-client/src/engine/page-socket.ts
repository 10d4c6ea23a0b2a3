import { Socket } from 'node:net'
import type { PageClient } from '@rdmakit/remote-volume'
import type { BlockEngine } from './block-engine.js'

const PAGE = 4096
const REQUEST_MAGIC = 0x25609513
const REPLY_MAGIC = 0x67446698
const REPLY_BYTES = 16
const READ = 0
const WRITE = 1

/**
 * Lends a client of `lane`, in transmission phase; it is gone, and the lane free for the next one, when this resolves.
 * @throws Error: the engine ends
 */
export async function withPageSocket(
  engine: BlockEngine,
  lane: number,
  work: (client: PageClient) => Promise<void>,
): Promise<void> {
  let forget = () => {}
  const idle = new Promise<void>((resolve) => {
    forget = engine.on('laneIdle', (event) => {
      if (event.lane === lane) resolve()
    })
  })
  const socket = new Socket({ fd: engine.attachSocketpair(lane), readable: true, writable: true })
  socket.on('error', () => {}) // "close" follows
  try {
    await work({
      read: (page) => request(socket, READ, page),
      write: async (page, bytes) => (await request(socket, WRITE, page, bytes)) !== undefined,
    })
    socket.destroy()
    // Before that the lane takes no client. An engine that has ended says nothing of its lanes.
    await idle
  } finally {
    socket.destroy()
    forget()
  }
}

/** @returns the bytes read; undefined: an I/O error */
async function request(
  socket: Socket,
  command: number,
  page: number,
  payload?: Uint8Array,
): Promise<Buffer | undefined> {
  const header = Buffer.alloc(28)
  header.writeUInt32BE(REQUEST_MAGIC, 0)
  header.writeUInt16BE(command, 6)
  header.writeBigUInt64BE(BigInt(page) * BigInt(PAGE), 16)
  header.writeUInt32BE(PAGE, 24)
  socket.write(payload === undefined ? header : Buffer.concat([header, payload]))
  const reply = await take(socket, REPLY_BYTES)
  if (reply.readUInt32BE(0) !== REPLY_MAGIC) throw new Error('the engine sent an unexpected answer')
  if (reply.readUInt32BE(4) !== 0) return undefined
  return command === READ ? await take(socket, PAGE) : Buffer.alloc(0)
}

async function take(socket: Socket, bytes: number): Promise<Buffer> {
  for (;;) {
    const taken: Buffer | null = socket.read(bytes)
    if (taken !== null && taken.length === bytes) return taken
    if (socket.readableEnded || socket.destroyed) throw new Error('the engine ended')
    await somethingNew(socket)
  }
}

/** Resolves when the engine has sent more, or has ended. */
function somethingNew(socket: Socket): Promise<void> {
  const events = ['readable', 'end', 'close'] as const
  return new Promise((resolve) => {
    const come = () => {
      for (const event of events) socket.off(event, come)
      resolve()
    }
    for (const event of events) socket.on(event, come)
  })
}
