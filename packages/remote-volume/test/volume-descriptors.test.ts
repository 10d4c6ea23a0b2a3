// A volume gives its descriptors back when it is closed, and when it cannot be opened.
import { describe, expect, it } from 'vitest'
import { COLLECTING, inSmallProcess } from '../../../test/scarce-descriptors.js'
import { ADDRESSES, serve } from './helpers/swap-servers.js'

const PREAMBLE = `
  const [uri, addon] = values
  const native = createRequire(addon)(addon)
  const make = (settings) => new VolumeEngine(native, settings, {})
  const open = () => openVolume({ servers: [[uri]], size: 4 * 2 ** 20, lanes: 2 }, make)
  // Held, or its channels would be collected with it.
  const device = await ConnectionId.resolve(uri)
  const { context } = device
  device.close()`
const IMPORTS = {
  '{ createRequire }': 'node:module',
  '{ ConnectionId }': new URL('../../verbs/dist/index.js', import.meta.url).href,
  '{ openVolume, VolumeEngine }': new URL('../dist/index.js', import.meta.url).href,
}
const ADDON = new URL('../build/Release/remote_volume.node', import.meta.url).pathname

describe.each(Object.entries(ADDRESSES))('over %s', (provider, address) => {
  it('a volume that lacks descriptors keeps none of those that it got', async () => {
    const { uri } = await serve(8, address())
    const program = `${PREAMBLE}
      const failures = await withFewDescriptors(open, (volume) => volume.close())
      return context.closed ? [] : failures`
    const failures = await inSmallProcess(IMPORTS, program, [uri, ADDON], COLLECTING)
    expect(failures.length).toBeGreaterThan(5)
    for (const { code, left } of failures) {
      expect(code).toBe('EMFILE')
      expect(left).toBeLessThanOrEqual(0)
    }
  })

  it('a volume that is closed leaves none open', async () => {
    const { uri } = await serve(8, address())
    const program = `${PREAMBLE}
      const openAndClose = async () => void (await (await open()).close())
      await openAndClose()
      const before = openDescriptors()
      for (let i = 0; i < 4; i++) await openAndClose()
      const left = await leftOpen(before)
      return context.closed ? Number.NaN : left`
    // Over shm memory that JavaScript was given has a descriptor, until it is collected. Nothing else waits for that.
    const flags: (typeof COLLECTING)[] = provider === 'shm' ? [COLLECTING] : []
    const left = await inSmallProcess<number>(IMPORTS, program, [uri, ADDON], ...flags)
    expect(left).toBeLessThanOrEqual(0)
  })
})
