// Options that are built from others, { channel: given.channel }, are undefined where those are: it is as if they were left
// out, for the compiler (exactOptionalPropertyTypes) as well.
import { expect, it, onTestFinished } from 'vitest'
import type { Refusing } from '../../../test/refusing.js'
import {
  type AddressVector,
  type CompletionQueueOptions,
  ConnectionId,
  type ConnectOptions,
  Listener,
  type ListenOptions,
  type MemoryOptions,
  type QueuePairAttributes,
  type ReceiveWorkRequest,
  type ScatterGatherElement,
  type SendSlot,
  type SendWorkRequest,
  type SharedReceiveQueueOptions,
  type UnconnectedQueuePairOptions,
  type WaitOptions,
} from '../src/index.js'

/** What has such a property does not compile here. */
const REFUSING: readonly Refusing<
  | AddressVector
  | CompletionQueueOptions
  | ConnectOptions
  | ListenOptions
  | MemoryOptions
  | QueuePairAttributes
  | ReceiveWorkRequest
  | ScatterGatherElement
  | SendSlot
  | SendWorkRequest
  | SharedReceiveQueueOptions
  | UnconnectedQueuePairOptions
  | WaitOptions
>[] = []

const isNone: typeof REFUSING extends readonly never[] ? true : false = true

it('every option may be undefined', async () => {
  expect(isNone).toBe(true)
  const wait = { signal: undefined, timeout: undefined }
  const given = { privateData: undefined, responderResources: undefined, initiatorDepth: undefined, ...wait }
  const queuePair = {
    receiveQueue: undefined,
    sharedReceiveQueue: undefined,
    maxSend: undefined,
    maxReceive: undefined,
    maxSendElements: undefined,
    maxReceiveElements: undefined,
    maxInlineData: undefined,
    signalAll: undefined,
  }
  const queue = { channel: undefined, progress: undefined, timestamps: undefined }
  const accept = ({ id }: { id: ConnectionId }) => {
    const domain = id.context.allocateProtectionDomain()
    id.createQueuePair(domain, {
      sendQueue: id.context.createCompletionQueue({ entries: 16, ...queue }),
      ...queuePair,
    })
    return id.accept(given)
  }
  const listening = { backlog: undefined, onError: undefined, onStalled: undefined, ...wait }
  const listener = await Listener.listen('iwarp://127.0.0.1:0', accept, listening)
  onTestFinished(() => listener.close())
  const id = await ConnectionId.resolve(listener.uri, wait)
  onTestFinished(() => id.close())
  const domain = id.context.allocateProtectionDomain()
  const region = await domain.allocateMemoryRegion(4096, undefined, {
    hugePages: undefined,
    numaNode: undefined,
    locked: undefined,
    memfd: undefined,
    populated: undefined,
  })
  const channel = id.context.createCompletionChannel()
  const sendQueue = id.context.createCompletionQueue({ entries: 16, ...queue, channel })
  const pair = id.createQueuePair(domain, { sendQueue, ...queuePair })
  await id.connect(given)
  const peer = { remoteAddress: 0n, remoteKey: 0 }
  const flags = { signaled: undefined, solicited: undefined, inline: undefined, fence: undefined }
  const none = { workRequestId: undefined, ...flags }
  pair.postSend({ opcode: 'rdma-write', data: undefined, ...peer, ...none })
  pair.createSendSlots(1, [region]).set(0, {
    opcode: 'rdma-write',
    region: undefined,
    offset: undefined,
    length: undefined,
    remoteAddress: undefined,
    remoteKey: undefined,
    immediate: undefined,
    invalidateKey: undefined,
    compare: undefined,
    swap: undefined,
    add: undefined,
    ...none,
  })
  const empty = { workRequestId: undefined, region: undefined, offset: undefined, length: undefined }
  pair.createReceiveSlots(1, [region]).set(0, empty)
  pair.postReceive({ workRequestId: undefined, data: [{ region, offset: undefined, length: undefined }] })
  const [completion] = await sendQueue.wait(1, { signal: undefined })
  expect(completion).toMatchObject({ workRequestId: 0n, status: 'success' })
})
