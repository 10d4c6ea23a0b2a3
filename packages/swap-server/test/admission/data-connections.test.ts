// Input from a peer on a data connection, before and after it is established: the peer reaches its own session's
// slabs or nothing, no other session is affected, and nothing of it stays.
import { randomBytes } from 'node:crypto'
import { ConnectionId } from '@rdmakit/verbs'
import fc from 'fast-check'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import { type RemoteSlab, SwapServer, SwapServerSession } from '../../src/index.js'
import { dataConnectionData } from '../../src/protocol/messages.js'
import { ADDRESSES, MIB } from '../fixture.js'

const MAX_DATA_CONNECTIONS = 4

/** Errors that the server reported about itself. */
let errors: string[]
let server: SwapServer
let uri: string
let mine: SwapServerSession
let theirs: SwapServerSession
let secret: RemoteSlab

/** A connection to the server with any private data, and a queue pair that its owner may use as it likes. */
async function connected(privateData: Uint8Array) {
  const id = await ConnectionId.resolve(uri)
  const protectionDomain = id.context.allocateProtectionDomain()
  const queue = id.context.createCompletionQueue({
    entries: 64,
    channel: id.context.createCompletionChannel(),
  })
  const close = () => {
    id.close()
    queue.close()
    protectionDomain.close()
  }
  try {
    const queuePair = id.createQueuePair(protectionDomain, { sendQueue: queue, maxSend: 32 })
    await id.connect({ privateData })
    const region = await protectionDomain.allocateMemoryRegion(4096, ['local-write'])
    return { id, queue, queuePair, region, close }
  } catch (failure) {
    close()
    throw failure
  }
}

/** How a control connection's begins. */
const ringMagic = Buffer.from('rdkR')

describe.each(Object.entries(ADDRESSES))('over %s', (_, address) => {
  beforeEach(async () => {
    errors = []
    const log = pino({ level: 'error' }, { write: (line: string) => errors.push(line) })
    server = new SwapServer({
      memory: 8 * MIB,
      slabSize: MIB,
      maxDataConnections: MAX_DATA_CONNECTIONS,
      log,
    })
    uri = await server.listen(address())
    mine = await SwapServerSession.open([uri])
    theirs = await SwapServerSession.open([uri])
    ;[secret] = (await theirs.allocate(1)) as [RemoteSlab]
  })

  afterEach(async () => {
    await Promise.all([mine.close(), theirs.close()])
    await eventually(() => server.sessions === 0 && server.store.free === 8)
    await server.close()
    expect(errors).toEqual([])
  })

  it('any private data is refused at once, unless it has the token of a session', async () => {
    const { token } = mine.identity
    const good = dataConnectionData(token)
    const privateData = fc.oneof(
      fc.uint8Array({ maxLength: 56 }),
      fc.nat({ max: good.length - 1 }).map((length) => good.subarray(0, length)),
      fc.tuple(fc.nat({ max: good.length - 1 }), fc.integer({ min: 1, max: 255 })).map(([at, flip]) => {
        const bytes = Uint8Array.from(good)
        bytes[at] = (bytes[at] as number) ^ flip
        return bytes
      }),
      fc.uint8Array({ maxLength: 52 }).map((rest) => Buffer.concat([ringMagic, rest])),
      fc.uint8Array({ maxLength: 32 }).map((rest) => Buffer.concat([good, rest])),
    )
    await fc.assert(
      fc.asyncProperty(privateData, async (bytes) => {
        const knows = Buffer.from(bytes).subarray(0, good.length).equals(good)
        const outcome = await connected(bytes).catch((failure: Error) => failure)
        if (!(outcome instanceof Error)) outcome.close()
        expect(outcome instanceof Error).toBe(!knows)
        if (outcome instanceof Error) expect(outcome).toMatchObject({ code: 'ECONNREFUSED' })
        expect(server.sessions).toBe(2)
      }),
      { numRuns: effort(40), verbose: 1 },
    )
    expect((await mine.query()).freeSlabs).toBe(7)
  })

  it('any request ends its own connection at worst, and reaches no other session', async () => {
    const [own] = (await mine.allocate(1)) as [RemoteSlab]
    const rubbish = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n })
    const target = fc.oneof(
      fc.record({
        address: fc.nat({ max: MIB + 4096 }).map((at) => own.address + BigInt(at)),
        of: fc.constant(own),
      }),
      fc.record({ address: fc.constant(secret.address), of: fc.constant(secret) }),
      fc.record({ address: rubbish, of: fc.constantFrom(own, secret) }),
    )
    const request = fc.record({
      opcode: fc.constantFrom('rdma-write' as const, 'rdma-read' as const, 'send' as const),
      target,
      remoteKey: fc.oneof(fc.constant(undefined), fc.integer({ min: 0, max: 2 ** 32 - 1 })),
      length: fc.integer({ min: 1, max: 4096 }),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 6 }), async (requests) => {
        const { queue, queuePair, region, close } = await connected(dataConnectionData(mine.identity.token))
        try {
          new Uint8Array(region.buffer).fill(0xbb)
          /** A WRITE that is refused has succeeded over iWARP; what comes behind it finds the connection ended. */
          let doomed = false
          for (const { opcode, target: at, remoteKey = at.of.remoteKey, length } of requests) {
            const data = [{ region, length }]
            if (opcode === 'send') {
              // No receive is posted for it; over shm it waits for one.
              queuePair.postSend({ opcode, data })
              break
            }
            queuePair.postSend({ opcode, data, remoteAddress: at.address, remoteKey })
            const [completion] = await queue.wait()
            const from = at.address - own.address
            const allowed = remoteKey === own.remoteKey && from >= 0n && from + BigInt(length) <= BigInt(MIB)
            if (opcode === 'rdma-read' && !doomed) expect(completion?.status === 'success').toBe(allowed)
            if (completion?.status !== 'success') break
            doomed ||= !allowed
          }
        } finally {
          close()
        }
        expect(server.sessions).toBe(2)
      }),
      { numRuns: effort(20), verbose: 1 },
    )
    const reader = await connected(dataConnectionData(theirs.identity.token))
    const { queue, queuePair, region } = reader
    queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region }],
      remoteAddress: secret.address,
      remoteKey: secret.remoteKey,
    })
    expect((await queue.wait())[0]?.status).toBe('success')
    expect(new Uint8Array(region.buffer).every((byte) => byte === 0)).toBe(true)
    reader.close()
  })

  it('there are as many as allowed, and room again when one has ended', async () => {
    const data = dataConnectionData(mine.identity.token)
    const all = await Promise.all(Array.from({ length: MAX_DATA_CONNECTIONS }, () => connected(data)))
    await expect(connected(data)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
    // Those of another session are not counted.
    ;(await connected(dataConnectionData(theirs.identity.token))).close()
    all.shift()?.close()
    let again: Awaited<ReturnType<typeof connected>> | undefined
    await expect
      .poll(async () => {
        again ??= await connected(data).catch(() => undefined)
        return again !== undefined
      })
      .toBe(true)
    for (const one of [...all, again]) one?.close()
  })

  it('none is left of a session that has ended, and none is made any more', async () => {
    const left = await SwapServerSession.open([uri])
    const data = dataConnectionData(left.identity.token)
    const { id, close } = await connected(data)
    await left.close()
    await id.disconnected
    close()
    await expect(connected(data)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
    await expect(connected(dataConnectionData(randomBytes(16)))).rejects.toMatchObject({
      code: 'ECONNREFUSED',
    })
  })
})
