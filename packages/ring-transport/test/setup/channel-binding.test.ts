// A value that both ends of a connection know, and that a man in the middle cannot reproduce for another one.
import { expect, it, onTestFinished } from 'vitest'
import { pair } from '../helpers/pair.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

it.each(PROVIDERS)(
  'over %s both ends have the same binding, and each connection another',
  async (provider) => {
    const bindings = new Set<string>()
    for (let i = 0; i < 2; i++) {
      const made = await pair(listenUri(provider))
      onTestFinished(() => made[Symbol.asyncDispose]())
      const { a, b } = made
      expect(a.channelBinding).toHaveLength(32)
      expect(a.channelBinding).toEqual(b.channelBinding)
      bindings.add(Buffer.from(a.channelBinding).toString('hex'))
    }
    expect(bindings.size).toBe(2)
  },
)
