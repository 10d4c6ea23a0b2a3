// Memory that JavaScript got is not reused until neither JavaScript nor its I/O can reach it.
import { randomBytes } from 'node:crypto'
import { PassThrough } from 'node:stream'
import { setImmediate as turn } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { describe, expect, it, onTestFinished } from 'vitest'
import { LENGTH, READS, type SlowIo, WRITES } from '../../../../test/slow-io.js'
import { keptMemory, type MemoryRegion } from '../../src/index.js'
import { LISTEN_URI, openContext } from './pair.js'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

/** Collects garbage, and ends what ends with it in a turn after that. */
async function collected(): Promise<void> {
  for (let i = 0; i < 3; i++) {
    collect()
    await turn()
  }
}

const MIB = 2 ** 20

/** Bytes that identify their position, between others that make the whole hard to compress. */
const PATTERN = randomBytes(LENGTH)
const filled = (byte: number) => PATTERN.map((noise, i) => (i % 16 === 0 ? byte : noise))

const same = (one: Uint8Array, other: Uint8Array) => Buffer.compare(one, other) === 0

describe(`memory of a region that is closed, on ${LISTEN_URI}`, () => {
  /** Makes regions in a domain that is closed with the test. */
  async function regions(): Promise<(byte: number, length?: number) => Promise<MemoryRegion>> {
    const device = await openContext()
    onTestFinished(() => device[Symbol.dispose]())
    const domain = device.context.allocateProtectionDomain()
    return async (byte, length = LENGTH) => {
      const region = await domain.allocateMemoryRegion(length)
      new Uint8Array(region.buffer).set(filled(byte).subarray(0, length))
      return region
    }
  }

  /** Closes a region under I/O and makes others. @returns what it took of the first, and what the others hold then */
  async function closedUnder(begin: SlowIo): Promise<{ taken: Uint8Array; others: Uint8Array[] }> {
    const make = await regions()
    const region = await make(1)
    const goOn = await begin(new Uint8Array(region.buffer))
    region.close()
    await collected()
    const others = [await make(2), await make(2), await make(2)]
    const taken = await goOn()
    return { taken, others: others.map(({ buffer }) => new Uint8Array(buffer)) }
  }

  it.each(READS)('%s into it writes over nobody else’s', async (_, begin) => {
    const { others } = await closedUnder(begin)
    for (const bytes of others) expect(same(bytes, filled(2))).toBe(true)
  })
  it.each(WRITES)('%s from it takes what was there', async (_, begin) => {
    const { taken } = await closedUnder(begin)
    expect(same(taken, filled(1))).toBe(true)
  })
  it('from a stream that had it in its queue takes what was there', async () => {
    const make = await regions()
    const region = await make(1)
    const through = new PassThrough({ highWaterMark: 1 })
    through.write('first')
    through.end(new Uint8Array(region.buffer))
    region.close()
    await make(2)
    const bytes = Buffer.concat(await through.toArray())
    expect(same(bytes.subarray('first'.length), filled(1))).toBe(true)
  })
  it('is counted, and unmapped once nothing can reach it', async () => {
    const make = await regions()
    await collected()
    const before = keptMemory()
    /** In a frame of its own, which the collector does not scan. */
    const viewOfClosed = async () => {
      const region = await make(1, MIB)
      const view = new Uint8Array(region.buffer)
      region.close()
      return view
    }
    const views = [await viewOfClosed(), await viewOfClosed()]
    await collected()
    expect(keptMemory()).toEqual({ regions: before.regions + 2, bytes: before.bytes + 2 * MIB })
    expect(views.splice(0).map(({ length }) => length)).toEqual([MIB, MIB])
    await collected()
    expect(keptMemory()).toEqual(before)
  })
  it('is never more than 256 MiB when nothing holds it', async () => {
    const make = await regions()
    let most = 0
    for (let i = 0; i < 10; i++) {
      const region = await make(1, 32 * MIB)
      region.close()
      most = Math.max(most, keptMemory().bytes)
    }
    expect(most).toBeGreaterThan(0)
    expect(most).toBeLessThanOrEqual(256 * MIB)
  })
})
