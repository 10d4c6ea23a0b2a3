// A program that starts others while its queue pairs are at work. fork(2) shares its memory with the child for a moment, and
// what is written to meanwhile must not move off the pages that the device knows (ibv_fork_init(3)).
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { expect, it, onTestFinished } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { completions, connectedPair, pattern, REGION_BYTES } from './pair.js'

it('a child process has none of our descriptors', async () => {
  const ofChild = () => spawnSync('ls', ['/proc/self/fd'], { encoding: 'utf8' }).stdout
  // Children of the process that started this one, perhaps.
  const before = ofChild()
  const pair = await connectedPair({ channel: true })
  onTestFinished(() => pair[Symbol.dispose]())
  const signal = AbortSignal.abort()
  await expect(pair.client.completionQueue.wait(1, { signal })).rejects.toThrow()
  expect(ofChild()).toBe(before)
})

it('memory of ours and of the caller stays where the device knows it while children begin', async () => {
  const pair = await connectedPair()
  onTestFinished(() => pair[Symbol.dispose]())
  const { client, server } = pair
  const own = new Uint8Array(new ArrayBuffer(REGION_BYTES))
  const borrowed = client.protectionDomain.registerMemoryRegion(own.buffer, ['local-write'])
  const { address: remoteAddress, remoteKey } = server.region
  const read = {
    opcode: 'rdma-read',
    data: [{ region: borrowed, length: REGION_BYTES }],
    remoteAddress,
    remoteKey,
  } as const
  for (let round = 1; round <= effort(4); round++) {
    const children = Array.from({ length: 4 }, () => spawn('true', { stdio: 'ignore' }))
    const ended = Promise.all(children.map((child) => once(child, 'exit')))
    // The first writes to these pages after the fork, at either end.
    client.bytes.set(pattern(REGION_BYTES, round))
    server.bytes.fill(0)
    own.fill(0)
    client.queuePair.postSend({ ...read, opcode: 'rdma-write', data: [{ region: client.region }] })
    await completions(client.completionQueue, 1)
    client.queuePair.postSend(read)
    expect(await completions(client.completionQueue, 1)).toMatchObject([{ status: 'success' }])
    expect(Buffer.compare(own, pattern(REGION_BYTES, round))).toBe(0)
    expect(Buffer.compare(server.bytes, pattern(REGION_BYTES, round))).toBe(0)
    expect((await ended).map(([status]) => status)).toEqual(children.map(() => 0))
  }
})
