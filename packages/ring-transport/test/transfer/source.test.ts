// Where the memory of a large message is registered and taken back: a device pins a gigabyte in a quarter of a second, in
// which the event loop would stand still.
import { type MemoryRegion, openDevice, type ProtectionDomain } from '@rdmakit/verbs'
import { expect, it, onTestFinished } from 'vitest'
import { sourceOf } from '../../src/transfer/source.js'

const MIB = 2 ** 20

/** A domain that tells what is called on JavaScript's thread, and what elsewhere. */
function told() {
  const context = openDevice('iwarp0', 'iwarp')
  onTestFinished(() => context.close())
  const domain = context.allocateProtectionDomain()
  const calls: string[] = []
  const watched = (region: MemoryRegion) => {
    const close = region.close.bind(region)
    const closeAsync = region.closeAsync.bind(region)
    region.close = () => {
      if (!region.closed) calls.push('close')
      close()
    }
    region.closeAsync = () => {
      calls.push('closeAsync')
      return closeAsync()
    }
    return region
  }
  const watching = {
    registerMemoryRegion: (...given: Parameters<ProtectionDomain['registerMemoryRegion']>) => {
      calls.push('register')
      return watched(domain.registerMemoryRegion(...given))
    },
    registerMemoryRegionAsync: async (
      ...given: Parameters<ProtectionDomain['registerMemoryRegionAsync']>
    ) => {
      calls.push('registerAsync')
      return watched(await domain.registerMemoryRegionAsync(...given))
    },
  }
  return { calls, domain: watching as ProtectionDomain }
}

it.each([
  [4 * MIB, ['register', 'close']],
  [4 * MIB + 1, ['registerAsync', 'closeAsync']],
  [64 * MIB, ['registerAsync', 'closeAsync']],
])('%i bytes are registered and taken back by %j', async (length, expected) => {
  const { calls, domain } = told()
  const source = sourceOf(new Uint8Array(length), domain)
  expect(await source.offer(0)).toBeInstanceOf(Uint8Array)
  await source.release()
  await source.release()
  expect(calls).toEqual(expected)
})

it('each message registers its memory anew: a peer cannot read it once it has it', async () => {
  const { calls, domain } = told()
  const bytes = new Uint8Array(64 * MIB)
  const keys = new Set<string>()
  for (let i = 0; i < 3; i++) {
    const source = sourceOf(bytes, domain)
    keys.add(Buffer.from(await source.offer(0)).toString('hex'))
    await source.release()
  }
  expect(calls.filter((call) => call === 'registerAsync')).toHaveLength(3)
  expect(keys.size).toBe(3)
})
