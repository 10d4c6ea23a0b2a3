// The active end of rping: offers a ping to be read, then a place for the pong to be written.
import { ConnectionId } from '@rdmakit/verbs'
import { Peer } from './peer.js'

export interface PingOptions {
  /** pings, 0: without end */
  readonly count: number
  /** bytes of a ping */
  readonly size: number
  /** compare each pong with its ping */
  readonly verify: boolean
  readonly verbose: boolean
}

export async function ping(uri: string, { count, size, verify, verbose }: PingOptions): Promise<void> {
  using id = await ConnectionId.resolve(uri)
  using peer = await Peer.make(id)
  const source = await peer.protectionDomain.allocateMemoryRegion(size, ['remote-read'])
  const sink = await peer.protectionDomain.allocateMemoryRegion(size, ['remote-write'])
  const sent = Buffer.from(source.buffer, 0, size)
  const came = Buffer.from(sink.buffer, 0, size)
  // One READ at a time is all that the protocol needs, and all that librdmacm's rping offers.
  await id.connect({ responderResources: 1, initiatorDepth: 1 })
  for (let number = 0; count === 0 || number < count; number++) {
    fill(sent, number)
    peer.send(source)
    await peer.receive()
    peer.send(sink)
    await peer.receive()
    if (verify && !sent.equals(came)) throw new Error(`ping ${number} came back changed`)
    if (verbose) console.log(`ping data: ${came.toString('latin1', 0, came.indexOf(0))}`)
  }
}

/** `rdma-ping-7: HIJKL…`, with the final zero byte of a string in C. */
function fill(bytes: Buffer, number: number): void {
  const letters = 58 // 'A' to 'z'
  const head = bytes.write(`rdma-ping-${number}: `, 'latin1')
  for (let at = head; at < bytes.length; at++) bytes[at] = 65 + ((number + at - head) % letters)
  bytes[bytes.length - 1] = 0
}
