// A poller that cannot be made keeps nothing.
import { setImmediate as turn } from 'node:timers/promises'
import { listDevices, openDevice } from '@rdmakit/verbs'
import { describe, expect, it } from 'vitest'
import { withFewDescriptors } from '../../../../test/scarce-descriptors.js'
import { Poller } from '../../src/index.js'
import { descriptors } from '../helpers/resources.js'
import { PROVIDERS } from '../helpers/uris.js'

const dist = (name: string) => new URL(`../../../${name}/dist/index.js`, import.meta.url).href

describe.each(PROVIDERS)('a poller of %s that cannot be made', (provider) => {
  const name = listDevices().find((one) => one.provider === provider)?.name as string

  it.each(['poll', 'event', 'adaptive', 'guarded'] as const)(
    'for its thread cannot be pinned, in mode %s, keeps no channel and no queue',
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
      await turn()
      expect(descriptors()).toBe(before)
    },
  )

  it('for descriptors are missing keeps none of those that it got', async () => {
    const program = `
      const context = openDevice(...values)
      return await withFewDescriptors(() => new Poller(context, { mode: 'event' }), (poller) => poller.close())`
    const failures = await withFewDescriptors(
      { '{ openDevice }': dist('verbs'), '{ Poller }': dist('ring-transport') },
      program,
      name,
      provider,
    )
    expect(failures).not.toEqual([])
    for (const failure of failures) expect(failure).toEqual({ code: 'EMFILE', left: 0 })
  })
})
