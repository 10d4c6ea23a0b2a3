import { describe, expect, it } from 'vitest'
import { openDevice } from '../../src/index.js'
import { connectedPair, LISTEN_URI } from './pair.js'

describe(`the device of ${LISTEN_URI}`, () => {
  it('opened by its name is the one that connections have', async () => {
    using pair = await connectedPair()
    const { context } = pair.client
    expect(openDevice(context.deviceName, context.provider)).toBe(context)
  })
})
