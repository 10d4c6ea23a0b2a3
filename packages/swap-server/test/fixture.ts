import type { QueuePair } from '@rdmakit/verbs'
import { expect, onTestFinished, vi } from 'vitest'
import type { RemoteSlab, SwapServerSession } from '../src/index.js'

export const MIB = 2 ** 20

let sockets = 0

/** The software providers, and where a server may listen on each: every call is another address. */
export const ADDRESSES = {
  iwarp: () => 'iwarp://127.0.0.1:0',
  shm: () => `shm:///tmp/rdmakit-swap-test-${process.pid}-${++sockets}.sock`,
}

/**
 * A client's own side of a data connection: reads and writes one slab of 1 MiB through it. A session is lost with its
 * data connection, and may be so before the completion that says why is taken: the queue pair is closed then, and there
 * is none.
 */
export async function dataPath(owner: SwapServerSession) {
  const protectionDomain = owner.context.allocateProtectionDomain()
  const channel = owner.context.createCompletionChannel()
  const queue = owner.context.createCompletionQueue({ entries: 16, channel })
  const region = await protectionDomain.allocateMemoryRegion(MIB)
  const queuePair: QueuePair = await owner.connectData(protectionDomain, { sendQueue: queue })
  const move = async (opcode: 'rdma-read' | 'rdma-write', { address, remoteKey }: RemoteSlab) => {
    queuePair.postSend({ opcode, data: [{ region }], remoteAddress: address, remoteKey })
    const lost = owner.lost.then((reason) => Promise.reject(new Error(reason)))
    const [completion] = await Promise.race([queue.wait(), lost])
    return completion?.status
  }
  return { bytes: new Uint8Array(region.buffer), move }
}

/** That `owner` cannot read `slab`. */
export async function isKeptFrom(
  owner: SwapServerSession,
  slab: RemoteSlab,
  before: () => Promise<void> = async () => {},
): Promise<void> {
  const { bytes, move } = await dataPath(owner)
  await before()
  bytes.fill(0xab)
  const outcome = await move('rdma-read', slab).catch(() => 'the session is lost')
  expect(['remote-access-error', 'the session is lost']).toContain(outcome)
  expect(bytes.every((byte) => byte === 0xab)).toBe(true)
}

/** Until the end of the test performance.now() stands still, except for the milliseconds given to `pass`. */
export function ownClock(): (milliseconds: number) => void {
  let now = performance.now()
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => now)
  onTestFinished(() => clock.mockRestore())
  return (milliseconds) => {
    now += milliseconds
  }
}
