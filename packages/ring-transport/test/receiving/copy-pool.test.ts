// Small messages that share an ArrayBuffer: each has its own bytes, and nothing takes them away.
import { setImmediate } from 'node:timers/promises'
import { MessageChannel } from 'node:worker_threads'
import { firstValueFrom, take, toArray } from 'rxjs'
import { expect, it, onTestFinished } from 'vitest'
import { CopyPool } from '../../src/receiving/copy-pool.js'
import { pair } from '../helpers/pair.js'
import { listenUri } from '../helpers/uris.js'

const SIZES = [0, 1, 64, 65, 66, 100, 127, 512, 1023, 2047, 2048, 2049, 5000]

const filled = (length: number, value: number) => new Uint8Array(length).fill(value)
const same = (one: Uint8Array, other: Uint8Array) => Buffer.compare(one, other) === 0

it('keeps every message as it was, whatever comes after it', async () => {
  await using made = await pair(listenUri('shm'))
  const { a, b } = made
  const count = 50 * SIZES.length
  const all = firstValueFrom(b.messages.pipe(take(count), toArray()))
  for (let i = 0; i < count; i++) {
    a.send(filled(SIZES[i % SIZES.length] as number, i))
    if (i % 10 === 0) await setImmediate()
  }
  const messages = await all
  messages.forEach(({ data }, i) => {
    expect(same(data, filled(SIZES[i % SIZES.length] as number, i)), `${i}`).toBe(true)
    // Who writes to one writes to no other.
    data.fill(255)
  })
  for (const { data } of messages) expect(data.every((byte) => byte === 255)).toBe(true)
})

it('answers do not share their bytes with other answers', async () => {
  await using made = await pair(listenUri('iwarp'))
  const { a, b } = made
  b.handle((request) => request.data)
  const asked = Array.from({ length: 300 }, (_, i) => a.request(filled(65 + 7 * i, i)))
  const answers = await Promise.all(asked)
  for (const answer of answers) answer.fill(answer[0] as number)
  answers.forEach((answer, i) => void expect(same(answer, filled(65 + 7 * i, i)), `${i}`).toBe(true))
})

it('shares at most 16 KiB, less at first, and begins each on a multiple of 8', () => {
  const pool = new CopyPool()
  const source = Uint8Array.from({ length: 4096 }, (_, i) => i)
  const buffers = new Set<ArrayBuffer>()
  for (let i = 0; i < 200; i++) {
    const length = 65 + ((i * 37) % 1984)
    const copy = pool.copy(source, i, length)
    expect(same(copy, source.slice(i, i + length)) && copy.byteOffset % 8 === 0, `${i}`).toBe(true)
    buffers.add(copy.buffer)
  }
  const lengths = [...buffers].map((buffer) => buffer.byteLength)
  expect(lengths.slice(0, 4)).toEqual([2048, 4096, 8192, 16_384])
  expect(Math.max(...lengths)).toBe(16_384)
})

it('has small and large ones in memory of their own', () => {
  const pool = new CopyPool()
  for (const length of [1, 64, 2049, 100_000]) {
    const copy = pool.copy(new Uint8Array(length), 0, length)
    expect([copy.byteOffset, copy.buffer.byteLength]).toEqual([0, length])
  }
})

it('loses no message by a transfer of another', () => {
  const pool = new CopyPool()
  const first = pool.copy(filled(100, 1), 0, 100)
  const second = pool.copy(filled(100, 2), 0, 100)
  expect(second.buffer).toBe(first.buffer)
  const { port1, port2 } = new MessageChannel()
  onTestFinished(() => [port1, port2].forEach((port) => void port.close()))
  // Node 20 clones what is marked, later versions refuse to.
  try {
    port1.postMessage(first, [first.buffer])
  } catch (refused) {
    expect(refused).toMatchObject({ name: 'DataCloneError' })
  }
  expect([first, second]).toEqual([filled(100, 1), filled(100, 2)])
  expect(pool.copy(filled(100, 3), 0, 100)).toEqual(filled(100, 3))
})
