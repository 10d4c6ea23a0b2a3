// The passive end of rping: READs each ping out of the client's memory and WRITEs it back as the pong.
import { type ConnectionId, Listener } from '@rdmakit/verbs'
import { DisconnectedError, Peer } from './peer.js'

export interface PongOptions {
  /** bytes of the longest ping to take */
  readonly size: number
  readonly verbose: boolean
  /** serve any number of clients, until `signal` aborts; else one */
  readonly persistent: boolean
  readonly signal: AbortSignal
}

export async function pong(uri: string, options: PongOptions): Promise<void> {
  let resolve!: () => void
  let reject!: (failure: unknown) => void
  const over = new Promise<void>((...ends) => {
    ;[resolve, reject] = ends
  })
  let clients = 0
  const listener = await Listener.listen(uri, async ({ id }) => {
    if (++clients > 1 && !options.persistent) return id.reject(Buffer.from('one client at a time'))
    try {
      await answer(id, options)
      if (!options.persistent) resolve()
    } catch (failure) {
      if (!options.persistent) reject(failure)
      else if (!options.signal.aborted)
        console.error(`rping: ${id.description}: ${(failure as Error).message}`)
    } finally {
      id.close()
    }
  })
  console.log(`listening ${listener.uri}`)
  options.signal.addEventListener('abort', () => resolve())
  try {
    await over
  } finally {
    listener.close()
  }
}

async function answer(id: ConnectionId, { size, verbose, signal }: PongOptions): Promise<void> {
  using peer = await Peer.make(id, signal)
  const region = await peer.protectionDomain.allocateMemoryRegion(size)
  const bytes = Buffer.from(region.buffer, 0, size)
  await id.accept({ responderResources: 1, initiatorDepth: 1 })
  for (;;) {
    const source = await peer.receive().catch(unlessDisconnected)
    if (source === undefined) return
    if (source.length > size) throw new Error(`a ping of ${source.length} bytes, ${size} at most (-S)`)
    await peer.read(region, source)
    // The data is a string in C, and so is what goes back.
    const end = bytes.subarray(0, source.length).indexOf(0)
    if (verbose) console.log(`server ping data: ${bytes.toString('latin1', 0, Math.max(end, 0))}`)
    peer.send(region)
    const sink = await peer.receive()
    const length = end < 0 ? source.length : end + 1
    if (sink.length < length) throw new Error(`no room for a pong of ${length} bytes in ${sink.length}`)
    await peer.write(region, length, sink)
    peer.send(region)
  }
}

/** Between two pings a client may leave. */
function unlessDisconnected(failure: unknown): undefined {
  if (!(failure instanceof DisconnectedError)) throw failure
}
