import {
  type CompletionQueue,
  ConnectionId,
  type Context,
  Listener,
  type MemoryRegion,
  type ProtectionDomain,
  type QueuePair,
  type QueuePairOptions,
  type WorkCompletion,
} from '../../src/index.js'

/**
 * Where the suite runs: a listening URI with port 0, or a path with %p for the process. Every case runs unchanged on every provider;
 * the lab names a real device here.
 */
export const LISTEN_URI = (process.env.RDMAKIT_CONFORMANCE_URI ?? 'iwarp://127.0.0.1:0').replace(
  '%p',
  String(process.pid),
)

/** One end of a connection with everything that a case needs. */
export interface End {
  readonly id: ConnectionId
  readonly context: Context
  readonly protectionDomain: ProtectionDomain
  readonly completionQueue: CompletionQueue
  readonly queuePair: QueuePair
  /** 1 MiB that peers may read and write */
  readonly region: MemoryRegion
  readonly bytes: Uint8Array
}

export interface Pair extends Disposable {
  readonly client: End
  readonly server: End
}

export const REGION_BYTES = 2 ** 20

type EndOptions = Partial<Omit<QueuePairOptions, 'sendQueue' | 'receiveQueue'>> & {
  /** completion channel, for cases that wait instead of polling */
  readonly channel?: boolean
}

async function makeEnd(id: ConnectionId, options: EndOptions): Promise<End> {
  const { context } = id
  const { channel, ...queuePairOptions } = options
  const protectionDomain = context.allocateProtectionDomain()
  const completionQueue = context.createCompletionQueue({
    entries: 512,
    ...(channel ? { channel: context.createCompletionChannel() } : {}),
  })
  const region = await protectionDomain.allocateMemoryRegion(REGION_BYTES, ['remote-read', 'remote-write'])
  const queuePair = id.createQueuePair(protectionDomain, { sendQueue: completionQueue, ...queuePairOptions })
  return {
    id,
    context,
    protectionDomain,
    completionQueue,
    queuePair,
    region,
    bytes: new Uint8Array(region.buffer),
  }
}

/** Two connected ends in this process. `beforeAccept` may post receives before data can arrive. */
export async function connectedPair(
  options: EndOptions = {},
  beforeAccept: (server: End) => void = () => {},
): Promise<Pair> {
  let accepted!: (end: End) => void
  let failed!: (reason: unknown) => void
  const serverEnd = new Promise<End>((resolve, reject) => {
    accepted = resolve
    failed = reject
  })
  const listener = await Listener.listen(LISTEN_URI, async ({ id }) => {
    try {
      const end = await makeEnd(id, options)
      beforeAccept(end)
      await id.accept()
      accepted(end)
    } catch (failure) {
      failed(failure)
    }
  })
  try {
    const id = await ConnectionId.resolve(listener.uri)
    const client = await makeEnd(id, options)
    await id.connect()
    const server = await serverEnd
    return {
      client,
      server,
      [Symbol.dispose]() {
        for (const end of [client, server]) {
          end.id.disconnect()
          end.id.close()
          end.protectionDomain.close()
          end.completionQueue.channel?.close()
          end.completionQueue.close()
        }
      },
    }
  } finally {
    listener.close()
  }
}

const DEADLINE_MS = 10_000

/** Takes `count` completions, giving the event loop its turns between polls. */
export async function completions(queue: CompletionQueue, count: number): Promise<WorkCompletion[]> {
  const taken: WorkCompletion[] = []
  const deadline = Date.now() + DEADLINE_MS
  while (taken.length < count) {
    if (Date.now() > deadline)
      throw new Error(`${taken.length} of ${count} completions after ${DEADLINE_MS} ms`)
    taken.push(...queue.poll(count - taken.length))
    await new Promise((resolve) => setImmediate(resolve))
  }
  return taken
}

/** A pattern in which every byte depends on its place. */
export function pattern(length: number, seed = 1): Uint8Array {
  return Uint8Array.from({ length }, (_, i) => (i * 31 + (i >> 8) * 17 + seed * 101) & 0xff)
}
