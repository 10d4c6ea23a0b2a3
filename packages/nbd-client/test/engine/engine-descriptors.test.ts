// An engine gives its descriptors back when it is closed: nothing waits for the collection of garbage.
import { expect, it } from 'vitest'
import { inSmallProcess } from '../../../../test/scarce-descriptors.js'

it('an engine that is closed has no descriptors', async () => {
  const imports = { '{ BlockEngine }': new URL('../../dist/index.js', import.meta.url).href }
  const program = `
    const open = () => new BlockEngine({ size: 2 ** 20 })
    await open().close()
    const before = openDescriptors()
    const opened = Array.from({ length: 4 }, open)
    const taken = openDescriptors() - before
    for (const engine of opened) await engine.close()
    const left = await leftOpen(before)
    // Wakes nobody any more.
    for (const engine of opened) engine.failServer(0, 'it is gone')
    return { taken, left }`
  const { taken, left } = await inSmallProcess<{ taken: number; left: number }>(imports, program, [])
  expect(taken).toBeGreaterThan(0)
  expect(left).toBeLessThanOrEqual(0)
})
