import { expect, it, type TestContext } from 'vitest'
import {
  type Access,
  type Capabilities,
  type CompletionQueue,
  ConnectionId,
  type Context,
  Listener,
  type MemoryRegion,
  type ProtectionDomain,
  type QueuePair,
  type QueuePairOptions,
  type SharedReceiveQueue,
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
  readonly sharedReceiveQueue: SharedReceiveQueue | undefined
  /** 1 MiB that peers may read and write */
  readonly region: MemoryRegion
  readonly bytes: Uint8Array
}

export interface Pair extends Disposable {
  readonly client: End
  readonly server: End
}

export const REGION_BYTES = 2 ** 20

type EndOptions = Partial<Omit<QueuePairOptions, 'sendQueue' | 'receiveQueue' | 'sharedReceiveQueue'>> & {
  /** completion channel, for cases that wait instead of polling */
  readonly channel?: boolean
  /** completions that the queue holds, default 512 */
  readonly entries?: number
  /** bytes of the region, default REGION_BYTES */
  readonly bytes?: number
  /** what peers may do with the region, default to read and write it */
  readonly access?: readonly Access[]
  /** stamps on completions */
  readonly timestamps?: 'device' | 'wallclock'
  /** receives come from a shared queue of this depth */
  readonly sharedReceives?: number
}

export async function makeEnd(id: ConnectionId, options: EndOptions): Promise<End> {
  const { context } = id
  const {
    channel,
    entries = 512,
    bytes = REGION_BYTES,
    access = ['remote-read', 'remote-write'],
    sharedReceives,
    timestamps,
    ...queuePairOptions
  } = options
  const protectionDomain = context.allocateProtectionDomain()
  const completionQueue = context.createCompletionQueue({
    entries,
    ...(timestamps === undefined ? {} : { timestamps }),
    ...(channel ? { channel: context.createCompletionChannel() } : {}),
  })
  const region = await protectionDomain.allocateMemoryRegion(bytes, access)
  const sharedReceiveQueue =
    sharedReceives === undefined
      ? undefined
      : protectionDomain.createSharedReceiveQueue({ maxReceive: sharedReceives })
  const queuePair = id.createQueuePair(protectionDomain, {
    sendQueue: completionQueue,
    ...queuePairOptions,
    ...(sharedReceiveQueue === undefined ? {} : { sharedReceiveQueue }),
  })
  return {
    id,
    context,
    protectionDomain,
    completionQueue,
    queuePair,
    sharedReceiveQueue,
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
      await id.accept({ timeout: DEADLINE_MS })
      accepted(end)
    } catch (failure) {
      failed(failure)
    }
  })
  try {
    const id = await ConnectionId.resolve(listener.uri)
    const client = await makeEnd(id, options)
    // The other end is made meanwhile, with memory that the kernel may have to find first.
    await id.connect({ timeout: DEADLINE_MS })
    const server = await serverEnd
    return {
      client,
      server,
      [Symbol.dispose]() {
        closeEnd(client)
        closeEnd(server)
      },
    }
  } finally {
    listener.close()
  }
}

/** Closes one end of a pair and what belongs to it. */
export function closeEnd(end: End): void {
  end.id.disconnect()
  end.id.close()
  end.protectionDomain.close()
  end.completionQueue.channel?.close()
  end.completionQueue.close()
}

/** The device that the suite runs on. */
export async function openContext(): Promise<{ context: Context; uri: string } & Disposable> {
  const listener = await Listener.listen(LISTEN_URI, ({ id }) => id.reject())
  const id = await ConnectionId.resolve(listener.uri)
  return {
    context: id.context,
    uri: listener.uri,
    [Symbol.dispose]() {
      id.close()
      listener.close()
    },
  }
}

/** The device's context, with nothing listening any more. */
async function probedContext(): Promise<Context> {
  using device = await openContext()
  return device.context
}

/**
 * A case that needs a capability. Where the device lacks it, `refused` shows that it fails in the documented
 * way, and the report names the case as unsupported.
 */
export function itRequires(
  capability: keyof Capabilities,
  title: string,
  supported: (test: TestContext) => Promise<void>,
  refused: (context: Context) => void | Promise<void>,
): void {
  it(title, async (test) => {
    const context = await probedContext()
    if (context.capabilities[capability]) return supported(test)
    await refused(context)
    unsupported(test, `the device lacks ${capability}`)
  })
}

/** Names this case as one that the device does not support. */
export function unsupported(test: TestContext, reason: string): void {
  Object.assign(test.task.meta, { unsupported: reason })
}

/** Expects the error of a verb that a device lacks. */
export function expectUnsupported(call: () => unknown): void {
  expect(call).toThrow(expect.objectContaining({ name: 'VerbsError', code: 'EOPNOTSUPP' }))
}

/** Expects the error of a post that a device does not support: libibverbs' drivers say EINVAL or EOPNOTSUPP. */
export function expectRefused(call: () => unknown): void {
  let failure: unknown
  try {
    call()
  } catch (thrown) {
    failure = thrown
  }
  expect(failure).toMatchObject({ name: 'VerbsError', code: expect.stringMatching(/^(EOPNOTSUPP|EINVAL)$/) })
}

/** rxe of Linux 6.1, the kernel's RoCE in software, whose ways some cases allow for. */
export function isRxe(context: Context): boolean {
  return context.queryDevice().vendor_id === 0xffffff
}

/** siw of Linux 6.1, the kernel's iWARP in software, whose ways some cases allow for. */
export function isSiw(context: Context): boolean {
  return context.queryDevice().vendor_id === 0x626d74
}

/** Until an error of the connection shows in the queue pair's state: siw's shows with the connection's end. */
export async function errorShows({ id, context }: End): Promise<void> {
  if (isSiw(context)) await id.disconnected
}

/**
 * What a request completes with that the peer refused. siw logs what a Terminate message says and flushes
 * the request that it is about.
 */
export function refusedStatus(context: Context): WorkCompletion['status'] {
  return isSiw(context) ? 'flushed' : 'remote-access-error'
}

/** Ends what hangs, and decides nothing: an emulated guest is slow. Below a test's own limit, which says less. */
export const DEADLINE_MS = 50_000

/** Polls in a row that find nothing, after which there is a pause: the device may have no other processor. */
const BUSY_POLLS = 100

/** Takes `count` completions, giving the event loop its turns between polls. */
export async function completions(
  queue: CompletionQueue,
  count: number,
  deadlineMs = DEADLINE_MS,
): Promise<WorkCompletion[]> {
  const taken: WorkCompletion[] = []
  const deadline = Date.now() + deadlineMs
  for (let empty = 0; taken.length < count; ) {
    if (Date.now() > deadline)
      throw new Error(`${taken.length} of ${count} completions after ${deadlineMs} ms`)
    const polled = queue.poll(count - taken.length)
    taken.push(...polled)
    empty = polled.length > 0 ? 0 : empty + 1
    await new Promise((resolve) => (empty < BUSY_POLLS ? setImmediate(resolve) : setTimeout(resolve, 1)))
  }
  return taken
}

/** A pattern in which every byte depends on its place. */
export function pattern(length: number, seed = 1): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(length)
  // Not Uint8Array.from(), which takes a second for a million of them in an emulated guest.
  for (let i = 0; i < length; i++) bytes[i] = i * 31 + (i >> 8) * 17 + seed * 101
  return bytes
}
