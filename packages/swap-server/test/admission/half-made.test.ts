// Connections that the server has begun to accept and whose clients do not go on: each ends, and that is no fault of the
// server. One would be an uncaught exception, after which swap-server opens no new sessions.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { SwapServer, SwapServerSession } from '../../src/index.js'
import { MIB } from '../fixture.js'

/** An MPA request of revision 2 (RFC 6581 §4), peer to peer, that asks for a control connection. */
function request(): Buffer {
  const ring = Buffer.alloc(36)
  ring.write('rdkR')
  ring.set([2, 1, 16, 0], 4)
  ring.writeUInt16BE(128, 8)
  ring.writeUInt32BE(0x01000101, 12)
  ring.writeBigUInt64BE(0x7f0000000000n, 16)
  const head = Buffer.alloc(20)
  head.write('MPA ID Req Frame')
  head.set([0x50, 2], 16)
  const depths = Buffer.from([0x80, 0x10, 0x80, 0x10])
  head.writeUInt16BE(depths.length + ring.length, 18)
  return Buffer.concat([head, depths, ring])
}

const uncaught: unknown[] = []
const note = (failure: unknown) => uncaught.push(failure)
let server: SwapServer
let uri: string
let sockets: Socket[]

async function serve(greetingTimeout: number): Promise<void> {
  server = new SwapServer({ memory: MIB, slabSize: MIB, greetingTimeout })
  uri = await server.listen('iwarp://127.0.0.1:0')
}

/** The server has answered its request, and waits for the first FPDU, which does not come. */
async function halfMade(): Promise<{ readonly closed: Promise<unknown> }> {
  const socket = connect(Number(new URL(uri).port), '127.0.0.1')
  sockets.push(socket)
  socket.on('error', () => {}) // the server may break it
  const closed = new Promise((resolve) => socket.once('close', resolve))
  socket.write(request())
  await once(socket, 'data')
  return { closed }
}

beforeEach(() => {
  uncaught.splice(0)
  process.on('uncaughtException', note)
  sockets = []
})

afterEach(async () => {
  for (const socket of sockets) socket.destroy()
  await server.close()
  process.off('uncaughtException', note)
})

describe('a connection that stays half made', () => {
  it('ends at the deadline', async () => {
    await serve(100)
    const { closed } = await halfMade()
    await closed
    expect(uncaught).toEqual([])
  })

  it('ends when a later one needs its place', async () => {
    await serve(60_000)
    const { closed } = await halfMade()
    for (let i = 0; i < server.budget.greetings; i++) await halfMade()
    await closed
    const session = await SwapServerSession.open([uri])
    await session.close()
    expect(uncaught).toEqual([])
  })

  it('ends with the server', async () => {
    await serve(60_000)
    const { closed } = await halfMade()
    await server.close()
    await closed
    expect(uncaught).toEqual([])
  })
})
