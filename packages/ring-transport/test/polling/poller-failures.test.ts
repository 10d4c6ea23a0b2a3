// A poller that cannot be made, or is closed, keeps no descriptor.
import { setImmediate as turn } from 'node:timers/promises'
import { listDevices, openDevice } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { inSmallProcess } from '../../../../test/scarce-descriptors.js'
import { Poller } from '../../src/index.js'
import { descriptors } from '../helpers/resources.js'
import { PROVIDERS } from '../helpers/uris.js'

const dist = (name: string) => new URL(`../../../${name}/dist/index.js`, import.meta.url).href

const MODES = ['poll', 'event', 'adaptive', 'caller', 'guarded'] as const

describe.each(PROVIDERS)('a poller of %s', (provider) => {
  const name = listDevices().find((one) => one.provider === provider)?.name as string

  it.each(MODES)('in mode %s that is closed gives its descriptors back at once', async (mode) => {
    const context = openDevice(name, provider)
    new Poller(context, { mode }).close()
    await turn()
    const before = descriptors()
    for (let i = 0; i < 10; i++) new Poller(context, { mode }).close()
    await eventually(() => descriptors() === before)
    expect(descriptors()).toBe(before)
  })

  it.each(MODES.filter((mode) => mode !== 'caller'))(
    'in mode %s whose thread cannot be pinned keeps no channel and no queue',
    async (mode) => {
      const context = openDevice(name, provider)
      new Poller(context, { mode }).close()
      await turn()
      const before = descriptors()
      // More than a collection of garbage would find in between.
      for (let i = 0; i < 10; i++)
        expect(() => new Poller(context, { mode, cpu: 1023 })).toThrow(
          expect.objectContaining({ code: 'EINVAL' }),
        )
      // On a thread of their provider's.
      await eventually(() => descriptors() === before)
      expect(descriptors()).toBe(before)
    },
  )

  it.each([
    "new Poller(context, { mode: 'event' })",
    "new PollerGroup(context, { mode: 'event', pollers: 3 })",
  ])('that lacks descriptors keeps none of those that it got: %s', async (make) => {
    const program = `
      const context = openDevice(...values)
      return await withFewDescriptors(() => ${make}, (made) => made.close())`
    const failures = await inSmallProcess(
      { '{ openDevice }': dist('verbs'), '{ Poller, PollerGroup }': dist('ring-transport') },
      program,
      [name, provider],
    )
    expect(failures).not.toEqual([])
    for (const failure of failures) expect(failure).toEqual({ code: 'EMFILE', left: 0 })
  })
})
