// Memory that READs go to: it is the reader's again when none of them is under way any more, however the reading ends.
import type { ProtectionDomain } from '@rdmakit/verbs'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { SEND } from '../../src/native.js'
import type { TransferHost } from '../../src/transfer/host.js'
import { READ_BYTES, Reads } from '../../src/transfer/reads.js'
import { deviceOf } from '../helpers/processes.js'

const context = deviceOf('iwarp')
let protectionDomain: ProtectionDomain
beforeAll(() => {
  protectionDomain = context.allocateProtectionDomain()
})
afterAll(() => context.close())

const SUCCESS = 0
const FLUSHED = 5

/** A pull of three READs, all of them posted, which complete when the test says so. */
async function pull() {
  const tags: number[] = []
  const reads = new Reads({
    object: 'connection',
    read: (_region, _offset, _address, _key, _length, tag) => {
      tags.push(tag)
      return SEND.done
    },
  } as Partial<TransferHost> as TransferHost)
  const region = await protectionDomain.allocateMemoryRegion(3 * READ_BYTES)
  const from = { address: 4096n, remoteKey: 1, length: 3 * READ_BYTES }
  const made = reads.pull(from, region, 0, () => {})
  let over = false
  made.done
    .finally(() => {
      over = true
    })
    .catch(() => {})
  expect(tags).toHaveLength(3)
  /** Whether it is over, when all that follows from what has happened has happened. */
  const isOver = async () => {
    await new Promise((resolve) => setImmediate(resolve))
    return over
  }
  return { reads, pull: made, tags: tags as [number, number, number], isOver }
}

it('a pull that is given up is over when its last READ has come', async () => {
  const { reads, pull: made, tags, isOver } = await pull()
  made.stop(new Error('given up'))
  expect(await isOver()).toBe(false)
  reads.onRead(tags[2], SUCCESS)
  reads.onRead(tags[0], SUCCESS)
  expect(await isOver()).toBe(false)
  reads.onRead(tags[1], SUCCESS)
  await expect(made.done).rejects.toThrow('given up')
})

it('a pull of which a READ has failed is over when the others have come', async () => {
  const { reads, pull: made, tags, isOver } = await pull()
  reads.onRead(tags[1], FLUSHED)
  expect(await isOver()).toBe(false)
  reads.onRead(tags[0], FLUSHED)
  expect(await isOver()).toBe(false)
  reads.onRead(tags[2], SUCCESS)
  await expect(made.done).rejects.toThrow('status 5')
})

it('a pull is done when all has been read, in whatever order', async () => {
  const { reads, pull: made, tags, isOver } = await pull()
  reads.onRead(tags[2], SUCCESS)
  reads.onRead(tags[0], SUCCESS)
  expect(await isOver()).toBe(false)
  reads.onRead(tags[1], SUCCESS)
  await expect(made.done).resolves.toBeUndefined()
})
