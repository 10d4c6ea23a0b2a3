// A peer may write to a ring whenever it likes, also while what lies there is read.
import { firstValueFrom, map } from 'rxjs'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { pair } from '../helpers/pair.js'
import { type Reader, rewrite } from '../helpers/rewritten.js'
import { listenUri, PROVIDERS } from '../helpers/uris.js'

describe.each(PROVIDERS)('over %s', (provider) => {
  it.each<Reader>(['text', 'view', 'request'])(
    'a message that is rewritten while it is read as %s is some text',
    async (reader) => {
      const torn = effort(100)
      expect(await rewrite(listenUri(provider), reader, torn)).toMatchObject({ torn })
    },
  )
})

it('nothing is decoded where a peer can write', async () => {
  const decode = vi.spyOn(TextDecoder.prototype, 'decode')
  onTestFinished(() => decode.mockRestore())
  const made = await pair(listenUri('shm'))
  onTestFinished(() => made[Symbol.asyncDispose]())
  const { a, b } = made
  const text = 'ü'.repeat(500)
  b.handle(() => {
    throw Object.assign(new Error(text), { code: 'EILSEQ' })
  })
  await expect(a.request(new Uint8Array(1))).rejects.toMatchObject({ code: 'EILSEQ' })
  for (const taken of [b.messages, b.views]) {
    const read = firstValueFrom(taken.pipe(map((message) => message.text())))
    a.send(Buffer.from(text))
    expect(await read).toBe(text)
  }
  b.handle((request) => Buffer.from(request.text()))
  expect(Buffer.from(await a.request(Buffer.from(text))).toString()).toBe(text)
  expect(decode.mock.calls.length).toBeGreaterThanOrEqual(4)
  // Copies share 16 KiB at most; a ring is a MiB.
  for (const [bytes] of decode.mock.calls)
    expect((bytes as Uint8Array).buffer.byteLength).toBeLessThanOrEqual(2 ** 14)
})
