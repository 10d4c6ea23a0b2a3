// A client by bare verbs that sends requests and takes no part in anything that follows: it frees nothing of its ring, and
// does not close its connection when the server does.
import { ConnectionId } from '@rdmakit/verbs'
import { control } from '../../src/protocol/messages.js'

/** Frames of version 2, whose units are 64 bytes. */
const VERSION = 2
const UNIT = 64
const FRAME_HEADER = 16
const REQUEST = 3
const LOG2_CAPACITY = 16
const RECEIVES = 512
/** bytes of the ring of a swap-server */
const SERVER_RING = 2 ** 14

export interface MuteClient {
  readonly connected: boolean
  readonly disconnected: Promise<unknown>
  close(): void
}

/**
 * Connects, with `ticket` as the application's data of the ring handshake, sends `requests` all at once and waits for the
 * first answer.
 */
export async function muteClient(
  uri: string,
  requests: readonly control.Request.$Properties[],
  ticket: Uint8Array = new Uint8Array(),
): Promise<MuteClient> {
  const id = await ConnectionId.resolve(uri)
  const domain = id.context.allocateProtectionDomain()
  const channel = id.context.createCompletionChannel()
  const queue = id.context.createCompletionQueue({ entries: 2 * RECEIVES, channel })
  let connected = true
  void id.disconnected.then(() => {
    connected = false
  })
  const ring = await domain.allocateMemoryRegion(2 ** LOG2_CAPACITY, ['local-write', 'remote-write'])
  const outgoing = await domain.allocateMemoryRegion(SERVER_RING)
  const queuePair = id.createQueuePair(domain, { sendQueue: queue, maxReceive: RECEIVES })
  for (let i = 0; i < RECEIVES; i++) queuePair.postReceive({ data: [{ region: outgoing, length: 8 }] })

  const handshake = Buffer.alloc(36)
  handshake.write('rdkR')
  handshake.set([VERSION, 1, LOG2_CAPACITY, ticket.length], 4)
  handshake.writeUInt16BE(16, 8)
  handshake.writeUInt32BE(ring.remoteKey, 12)
  handshake.writeBigUInt64BE(ring.address, 16)
  const answer = Buffer.from(await id.connect({ privateData: Buffer.concat([handshake, ticket]) }))

  const frames = Buffer.from(outgoing.buffer)
  let length = 0
  for (const [at, request] of requests.entries()) {
    const payload = control.Request.encode(request).finish()
    frames.writeUInt32LE(payload.length, length)
    frames.writeUInt32LE(REQUEST, length + 4)
    frames.writeUInt32LE(at + 1, length + 8)
    frames.set(payload, length + FRAME_HEADER)
    length += Math.ceil((FRAME_HEADER + payload.length) / UNIT) * UNIT
  }
  queuePair.postSend({
    opcode: 'rdma-write-with-immediate',
    immediate: length / UNIT,
    data: [{ region: outgoing, length }],
    remoteAddress: answer.readBigUInt64BE(16),
    remoteKey: answer.readUInt32BE(12),
  })
  for (let answered = false; !answered; )
    answered = (await queue.wait()).some(({ opcode }) => opcode !== 'rdma-write')
  return {
    get connected() {
      return connected
    },
    disconnected: id.disconnected,
    close() {
      id.close()
      queue.close()
      channel.close()
      domain.close()
    },
  }
}
