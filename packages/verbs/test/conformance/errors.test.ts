import { describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import {
  ConnectionId,
  ConnectionRejectedError,
  type ConnectionRequest,
  Listener,
  VerbsError,
} from '../../src/index.js'
import { within } from '../../src/internal.js'
import {
  completions,
  connectedPair,
  DEADLINE_MS,
  errorShows,
  isSiw,
  LISTEN_URI,
  openContext,
  refusedStatus,
  unsupported,
} from './pair.js'

describe(`errors on ${LISTEN_URI}`, () => {
  it('a key that the peer never gave: remote access error, then the connection ends', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region: client.region, length: 64 }],
      remoteAddress: server.region.address,
      remoteKey: (server.region.remoteKey ^ 0x00ff00) >>> 0,
    })
    const [completion] = await completions(client.completionQueue, 1)
    expect(completion?.status).toBe(refusedStatus(client.context))
    await errorShows(client)
    expect(client.queuePair.state).toBe('error')
  })

  it('a read past the end of the region: remote access error', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region: client.region, length: 64 }],
      remoteAddress: server.region.address + BigInt(server.region.length) - 63n,
      remoteKey: server.region.remoteKey,
    })
    expect((await completions(client.completionQueue, 1))[0]?.status).toBe(refusedStatus(client.context))
  })

  it('a WRITE that is refused is a success at most over iWARP, and a READ behind it never', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    client.bytes.fill(1)
    const remoteAddress = server.region.address
    const data = [{ region: client.region, length: 8 }]
    const wrongKey = (server.region.remoteKey ^ 0x00ff00) >>> 0
    // By one doorbell: siw refuses or forgets what is posted once the refusal has come.
    client.queuePair.postSend(
      { opcode: 'rdma-write', workRequestId: 1n, data, remoteAddress, remoteKey: wrongKey },
      {
        opcode: 'rdma-read',
        workRequestId: 2n,
        data: [{ region: client.region, offset: 4096, length: 1 }],
        remoteAddress,
        remoteKey: server.region.remoteKey,
      },
    )
    const [write, read] = await completions(client.completionQueue, 2)
    // A WRITE has no answer there (RFC 5040, section 5.5), unless the refusal comes before all has left.
    const isIwarp = client.context.provider === 'iwarp' || isSiw(client.context)
    if (isIwarp) expect(['success', 'flushed']).toContain(write?.status)
    else expect(write?.status).toBe(refusedStatus(client.context))
    expect([write?.workRequestId, read?.workRequestId]).toEqual([1n, 2n])
    expect(read?.status).not.toBe('success')
    expect(server.bytes.subarray(0, 8)).toEqual(new Uint8Array(8))
  })

  it('a region of another protection domain is out of reach', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    using stranger = server.context.allocateProtectionDomain()
    const region = await stranger.allocateMemoryRegion(4096, ['remote-read', 'remote-write'])
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region: client.region, length: 64 }],
      remoteAddress: region.address,
      remoteKey: region.remoteKey,
    })
    expect((await completions(client.completionQueue, 1))[0]?.status).toBe(refusedStatus(client.context))
  })

  it('a region that was deregistered is out of reach', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    const region = await server.protectionDomain.allocateMemoryRegion(4096, ['remote-read'])
    const { address: remoteAddress, remoteKey } = region
    region.close()
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region: client.region, length: 64 }],
      remoteAddress,
      remoteKey,
    })
    expect((await completions(client.completionQueue, 1))[0]?.status).toBe(refusedStatus(client.context))
  })

  it('a message longer than the posted buffer fails at the receiver', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    server.queuePair.postReceive({ data: [{ region: server.region, length: 10 }] })
    client.queuePair.postSend({ opcode: 'send', data: [{ region: client.region, length: 11 }] })
    const [completion] = await completions(server.completionQueue, 1)
    // ibv_poll_cq(3) names it IBV_WC_LOC_LEN_ERR; rxe of Linux 6.1 says IBV_WC_LOC_QP_OP_ERR.
    expect(['local-length-error', 'local-queue-pair-operation-error']).toContain(completion?.status)
  })

  it('moving to the error state flushes what is outstanding', async () => {
    using pair = await connectedPair()
    const { server } = pair
    for (let i = 0; i < 5; i++)
      server.queuePair.postReceive({ workRequestId: BigInt(i), data: [{ region: server.region }] })
    server.queuePair.moveToError()
    const flushed = await completions(server.completionQueue, 5)
    expect(flushed.map(({ status }) => status)).toEqual(Array(5).fill('flushed'))
    expect(flushed.map(({ workRequestId }) => workRequestId)).toEqual([0n, 1n, 2n, 3n, 4n])
  })

  it('both ends hear of a disconnect, and what was posted is flushed', async () => {
    using pair = await connectedPair()
    const { client, server } = pair
    server.queuePair.postReceive({ data: [{ region: server.region }] })
    client.id.disconnect()
    expect(await server.id.disconnected).toBeUndefined()
    expect((await completions(server.completionQueue, 1))[0]?.status).toBe('flushed')
  })

  it('nobody listens: ECONNREFUSED, with the verb and the object', async () => {
    const listener = await Listener.listen(LISTEN_URI, () => {})
    const { uri } = listener
    listener.close()
    const id = await ConnectionId.resolve(uri)
    try {
      const queue = id.context.createCompletionQueue({ entries: 16 })
      const protectionDomain = id.context.allocateProtectionDomain()
      id.createQueuePair(protectionDomain, { sendQueue: queue })
      const failure = await id.connect().catch((reason: unknown) => reason)
      expect(failure).toBeInstanceOf(VerbsError)
      expect(failure).toMatchObject({
        code: 'ECONNREFUSED',
        verb: 'rdma_connect',
        object: `connection to ${uri}`,
      })
    } finally {
      id.close()
    }
  })

  it('a request that is closed without an answer is refused', async () => {
    const listener = await Listener.listen(LISTEN_URI, ({ id }) => id.close())
    const id = await ConnectionId.resolve(listener.uri)
    try {
      id.createQueuePair(id.context.allocateProtectionDomain(), {
        sendQueue: id.context.createCompletionQueue({ entries: 16 }),
      })
      await expect(id.connect()).rejects.toMatchObject({ code: 'ECONNREFUSED' })
    } finally {
      id.close()
      listener.close()
    }
  })

  it('a reject carries its reason', async () => {
    const listener = await Listener.listen(LISTEN_URI, ({ id }) => id.reject(Buffer.from('no room')))
    const id = await ConnectionId.resolve(listener.uri)
    try {
      id.createQueuePair(id.context.allocateProtectionDomain(), {
        sendQueue: id.context.createCompletionQueue({ entries: 16 }),
      })
      const failure = await id.connect().catch((reason: unknown) => reason)
      expect(failure).toBeInstanceOf(ConnectionRejectedError)
      const { privateData } = failure as ConnectionRejectedError
      expect(Buffer.from(privateData).toString('latin1')).toMatch(/^no room\0*$/)
    } finally {
      id.close()
      listener.close()
    }
  })

  /** A request of a peer that has closed its end again, and a try to take it. */
  const givenUp = async () => {
    const requests: ConnectionRequest[] = []
    const listener = await Listener.listen(LISTEN_URI, (request) => void requests.push(request))
    const peer = await ConnectionId.resolve(listener.uri)
    using protectionDomain = peer.context.allocateProtectionDomain()
    peer.createQueuePair(protectionDomain, {
      sendQueue: peer.context.createCompletionQueue({ entries: 16 }),
    })
    await expect(peer.connect({ timeout: 300 })).rejects.toMatchObject({ code: 'ETIMEDOUT' })
    await eventually(() => requests.length === 1)
    peer.close()
    const [{ id }] = requests as [ConnectionRequest]
    const theirs = id.context.allocateProtectionDomain()
    const take = async () => {
      // With as much inline as a device may grant: some grant more than they were asked for.
      id.createQueuePair(theirs, {
        sendQueue: id.context.createCompletionQueue({ entries: 16 }),
        maxInlineData: 64,
      })
      await id.accept({ timeout: 3_000 })
    }
    const close = () => {
      theirs.close()
      id.close()
      listener.close()
    }
    return { peer, id, take, close }
  }

  /** siw of Linux 6.1 destroys an id that has given up 10 s later, and nothing makes it hurry. */
  const slowToGiveUp = async () => {
    using device = await openContext()
    return isSiw(device.context) && process.env.RDMAKIT_TIER !== 'soak'
  }

  it('a request whose peer has given up can be taken, and fails in time', async (test) => {
    if (await slowToGiveUp()) return unsupported(test, 'siw gives up after 10 s: npm run soak waits for that')
    const { peer, take, close } = await givenUp()
    await eventually(() => peer.destroyed)
    // The peer's end arrives asynchronously, and is not reported here.
    await new Promise((resolve) => setTimeout(resolve, 500))
    await expect(take()).rejects.toBeInstanceOf(VerbsError)
    close()
  })

  // siw gives up after 10 s, and until then it may answer.
  it('a connection to a peer that is giving up fails, or ends at once', async () => {
    const { peer, id, take, close } = await givenUp()
    const ended = take().then(() => id.disconnected)
    await within(ended, DEADLINE_MS, () => new Error('it goes on')).catch((failure) =>
      expect(failure).toBeInstanceOf(VerbsError),
    )
    await eventually(() => peer.destroyed)
    close()
  })

  it('private data travels both ways', async () => {
    const seen: string[] = []
    const listener = await Listener.listen(LISTEN_URI, async ({ id, privateData }) => {
      seen.push(Buffer.from(privateData).toString('latin1'))
      id.createQueuePair(id.context.allocateProtectionDomain(), {
        sendQueue: id.context.createCompletionQueue({ entries: 16 }),
      })
      await id.accept({ privateData: Buffer.from('welcome') })
    })
    const id = await ConnectionId.resolve(listener.uri)
    try {
      id.createQueuePair(id.context.allocateProtectionDomain(), {
        sendQueue: id.context.createCompletionQueue({ entries: 16 }),
      })
      const answer = await id.connect({ privateData: Buffer.from('hello') })
      expect(Buffer.from(answer).toString('latin1')).toMatch(/^welcome\0*$/)
      expect(seen[0]).toMatch(/^hello\0*$/)
    } finally {
      id.close()
      listener.close()
    }
  })
})
