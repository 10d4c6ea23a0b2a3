import { randomUUID } from 'node:crypto'
import { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ConnectionId, type ConnectionRequest, Listener, type MemoryRegion } from '@rdmakit/verbs'
import { MIB } from '../../../remote-volume/test/helpers/swap-servers.js'
import { BlockEngine } from '../../src/engine/block-engine.js'
import type { BlockEngineOptions } from '../../src/engine/front-options.js'

export { MIB }

const SLABS = 4

/** An engine of 4 slabs of 1 MiB on one software RDMA server in this process. */
export interface Setup extends AsyncDisposable {
  readonly engine: BlockEngine
  /** the server's memory, slab after slab */
  readonly slabs: MemoryRegion
  /** adds a lane with its own queue pair and arena; gives its index */
  addLane(): Promise<number>
  /** ends the server's connections */
  dropServer(): void
}

export async function setup(options: Partial<BlockEngineOptions> = {}): Promise<Setup> {
  const accepted: ConnectionId[] = []
  let slabs: MemoryRegion | undefined
  const listener = await Listener.listen('iwarp://127.0.0.1:0', async ({ id }: ConnectionRequest) => {
    const { protectionDomain } = slabs as MemoryRegion
    const completionQueue = id.context.createCompletionQueue({ entries: 16 })
    id.createQueuePair(protectionDomain, { sendQueue: completionQueue, maxSend: 1, maxReceive: 1 })
    await id.accept()
    accepted.push(id)
  })
  const probe = await ConnectionId.resolve(listener.uri)
  const { context } = probe
  const served = context.allocateProtectionDomain()
  slabs = await served.allocateMemoryRegion(SLABS * MIB, ['remote-read', 'remote-write'])
  const engine = new BlockEngine({ size: SLABS * MIB, slabSize: MIB, ...options })
  for (let slab = 0; slab < SLABS; slab++)
    engine.mapSlab(slab, {
      server: 0,
      remoteKey: slabs.remoteKey,
      address: slabs.address + BigInt(slab * MIB),
    })
  const protectionDomain = context.allocateProtectionDomain()
  const needs = BlockEngine.laneRequirements()

  return {
    engine,
    slabs,
    async addLane() {
      const channel = context.createCompletionChannel()
      const completionQueue = context.createCompletionQueue({
        entries: needs.completionQueueEntries,
        channel,
        progress: 'manual',
      })
      const id = await ConnectionId.resolve(listener.uri)
      const queuePair = id.createQueuePair(protectionDomain, {
        sendQueue: completionQueue,
        maxSend: needs.sendQueueDepth,
        maxReceive: 1,
      })
      await id.connect()
      const arena = await protectionDomain.allocateMemoryRegion(needs.arenaBytes, ['local-write'])
      return engine.addLane({ completionQueue, channel, queuePairs: [queuePair], memoryRegions: [arena] })
        .index
    },
    dropServer() {
      for (const id of accepted) id.disconnect()
    },
    async [Symbol.asyncDispose]() {
      await engine.close()
      probe.close()
      listener.close()
      for (const id of accepted) id.close()
      protectionDomain.close()
      served.close()
    },
  }
}

export function socketPath(): string {
  return join(tmpdir(), `nbd-${randomUUID()}.sock`)
}

const REQUEST_MAGIC = 0x25609513
export const READ = 0
export const WRITE = 1
export const DISCONNECT = 2
export const FLUSH = 3
export const TRIM = 4

/** An NBD client in transmission phase, one request at a time. */
export class Client {
  readonly #socket: Socket
  #received = Buffer.alloc(0)
  #wake: () => void = () => {}
  #ended = false

  constructor(descriptor: number) {
    this.#socket = new Socket({ fd: descriptor, readable: true, writable: true })
    this.#socket.on('data', (bytes) => {
      this.#received = Buffer.concat([this.#received, bytes])
      this.#wake()
    })
    const end = () => {
      this.#ended = true
      this.#wake()
    }
    this.#socket.on('end', end).on('close', end).on('error', end)
  }

  /** @returns the error code of the reply and, of a READ, its data; undefined: the connection ended */
  async request(
    command: number,
    offset: number,
    length: number,
    payload?: Uint8Array,
  ): Promise<{ error: number; data: Buffer } | undefined> {
    const header = Buffer.alloc(28)
    header.writeUInt32BE(REQUEST_MAGIC, 0)
    header.writeUInt16BE(command, 6)
    header.writeBigUInt64BE(77n, 8)
    header.writeBigUInt64BE(BigInt(offset), 16)
    header.writeUInt32BE(length, 24)
    this.#socket.write(payload === undefined ? header : Buffer.concat([header, payload]))
    const reply = await this.#take(16)
    if (reply === undefined) return undefined
    const error = reply.readUInt32BE(4)
    const data = command === READ && error === 0 ? await this.#take(length) : Buffer.alloc(0)
    return data === undefined ? undefined : { error, data }
  }

  /** More of a request whose payload was too short. */
  send(payload: Uint8Array): void {
    this.#socket.write(payload)
  }

  close(): void {
    this.#socket.destroy()
  }

  async #take(length: number): Promise<Buffer | undefined> {
    while (this.#received.length < length) {
      if (this.#ended) return undefined
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
    const taken = this.#received.subarray(0, length)
    this.#received = this.#received.subarray(length)
    return taken
  }
}
