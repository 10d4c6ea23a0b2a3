import { concatMap, delay, firstValueFrom, from, lastValueFrom, NEVER, take, tap, toArray } from 'rxjs'
import { describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import type { RingMessage } from '../../src/index.js'
import { PROVIDERS, pair } from '../helpers/pair.js'
import { differing, pattern, sendAll } from '../helpers/processes.js'

const numbered = (count: number, length = 64) =>
  Array.from({ length: count }, (_, i) => {
    const message = new Uint8Array(length)
    new DataView(message.buffer).setUint32(0, i)
    return message
  })
const number = (message: RingMessage) =>
  new DataView(message.data.buffer, message.data.byteOffset).getUint32(0)

/** Something to wait for, many times. */
function gate() {
  let open = () => {}
  let opened = Promise.resolve()
  return {
    shut() {
      opened = new Promise((resolve) => {
        open = resolve
      })
    },
    open: () => open(),
    passed: () => opened,
  }
}

describe.each(PROVIDERS)('over %s', (_, uri) => {
  describe('batches', () => {
    it.each(['batches', 'viewBatches'] as const)(
      '%s bring all that has arrived, in order, and end with the connection',
      async (way) => {
        await using ends = await pair(uri())
        const messages = effort(10_000)
        const sending = sendAll(ends.a, numbered(messages)).then(() => ends.a.close())
        const wrong: number[] = []
        let next = 0
        let batches = 0
        for await (const batch of ends.b[way]({ limit: 100 })) {
          batches++
          expect(batch.length).toBeLessThanOrEqual(100)
          for (const message of batch) if (number(message) !== next++) wrong.push(next)
        }
        await sending
        expect({ next, wrong }).toEqual({ next: messages, wrong: [] })
        expect(batches).toBeGreaterThanOrEqual(messages / 100)
        expect(batches).toBeLessThan(messages)
      },
    )

    it('as views are readable until the next is asked for, what was retained longer', async () => {
      await using ends = await pair(uri())
      await sendAll(ends.a, [pattern(100, 1), pattern(100, 2)])
      const batches = ends.b.viewBatches({ limit: 1 })
      const first = (await batches.next()).value?.messages[0] as RingMessage
      expect(first.copy()).toEqual(pattern(100, 1))
      first.retain()
      const second = (await batches.next()).value?.messages[0] as RingMessage
      expect(first.copy()).toEqual(pattern(100, 1))
      first.release()
      expect(first.isReleased).toBe(true)
      expect(second.isReleased).toBe(false)
      await batches.return()
      expect(second.isReleased).toBe(true)
    })

    it('stall the sender of a consumer that does not ask', async () => {
      await using ends = await pair(uri(), { capacity: 8192 })
      const batches = ends.b.viewBatches({ limit: 8 })
      const messages = numbered(200, 512)
      const sending = sendAll(ends.a, messages)
      // Up to 8: as many as had arrived.
      let seen = (await batches.next()).value?.length ?? 0
      // A ring of 8 KiB holds 14 of these, and the consumer has given none of them back.
      expect(ends.a.send(messages[0] as Uint8Array)).toBe(false)
      while (seen < 200) seen += (await batches.next()).value?.length ?? 0
      expect(await sending).toBeGreaterThan(0)
      expect(seen).toBe(200)
    })

    it('end with the signal, and leave the messages to the next consumer', async () => {
      await using ends = await pair(uri())
      const stop = new AbortController()
      const batches = ends.b.batches({ signal: stop.signal })
      const waiting = batches.next()
      stop.abort(new Error('enough'))
      await expect(waiting).rejects.toThrow('enough')
      ends.a.send(pattern(9, 9))
      expect(await firstValueFrom(ends.b.consume((message) => [message.copy()]))).toEqual(pattern(9, 9))
    })

    it('cannot be taken beside another consumer', async () => {
      await using ends = await pair(uri())
      const subscription = ends.b.messages.subscribe()
      await expect(ends.b.batches().next()).rejects.toMatchObject({ name: 'UsageError' })
      subscription.unsubscribe()
      const batches = ends.b.batches()
      void batches.next().catch(() => {})
      await expect(lastValueFrom(ends.b.consume(() => []))).rejects.toMatchObject({ name: 'UsageError' })
      await expect(lastValueFrom(ends.b.messages)).rejects.toMatchObject({ name: 'UsageError' })
    })
  })

  describe('consume', () => {
    it.each(['consume', 'consumeViews'] as const)(
      '%s takes no more until the consumer is done, and stops the sender meanwhile',
      async (way) => {
        await using ends = await pair(uri(), { capacity: 8192 })
        const door = gate()
        door.shut()
        const messages = numbered(100, 512)
        let working = 0
        let most = 0
        const seen = lastValueFrom(
          ends.b[way](async (message) => {
            most = Math.max(most, ++working)
            await door.passed()
            working--
            return number(message)
          }, 3).pipe(take(100), toArray()),
        )
        const sending = sendAll(ends.a, messages)
        await expect.poll(() => working).toBe(3)
        expect(ends.a.send(messages[0] as Uint8Array)).toBe(false)
        door.open()
        expect((await seen).toSorted((x, y) => x - y)).toEqual(messages.map((_, i) => i))
        expect(most).toBe(3)
        expect(await sending).toBeGreaterThan(0)
      },
    )

    it('gives the ring back when it is left, and when a consumer fails', async () => {
      await using ends = await pair(uri(), { capacity: 4096 })
      let kept: RingMessage | undefined
      const failing = lastValueFrom(
        ends.b.consumeViews((message) => {
          kept = message
          throw new Error('cannot')
        }),
      )
      ends.a.send(pattern(1000, 1))
      await expect(failing).rejects.toThrow('cannot')
      expect(kept?.isReleased).toBe(true)
      const left = ends.b.consumeViews((message) => {
        kept = message
        return NEVER
      })
      const subscription = left.subscribe()
      ends.a.send(pattern(1000, 2))
      await expect.poll(() => kept?.isReleased).toBe(false)
      subscription.unsubscribe()
      expect(kept?.isReleased).toBe(true)
      // All of the ring is free again: twenty times its size goes through.
      const all = lastValueFrom(
        ends.b
          .consume((message) => from([message.length]).pipe(concatMap((length) => [length])))
          .pipe(take(80), toArray()),
      )
      await sendAll(
        ends.a,
        Array.from({ length: 80 }, (_, i) => pattern(1000, i)),
      )
      expect(await all).toHaveLength(80)
    })

    it('completes when the connection ends', async () => {
      await using ends = await pair(uri())
      const seen = lastValueFrom(ends.b.consume((message) => [message.text()]).pipe(toArray()))
      await sendAll(ends.a, [Buffer.from('a'), Buffer.from('b')])
      await ends.a.close()
      expect(await seen).toEqual(['a', 'b'])
    })
  })

  describe('copies', () => {
    it.each(['messages', 'batches', 'consume'] as const)('%s are kept as long as one likes', async (way) => {
      await using ends = await pair(uri(), { capacity: 4096 })
      const kept: RingMessage[] = []
      const all = (async () => {
        if (way === 'batches') {
          for await (const batch of ends.b.batches()) {
            kept.push(...batch)
            if (kept.length === 50) return
          }
        } else if (way === 'consume') {
          const keep = (message: RingMessage) => [kept.push(message)]
          await lastValueFrom(ends.b.consume(keep).pipe(take(50)))
        } else
          await lastValueFrom(
            ends.b.messages.pipe(
              tap((message) => kept.push(message)),
              take(50),
            ),
          )
      })()
      const messages = Array.from({ length: 50 }, (_, i) => pattern(1000, i))
      await sendAll(ends.a, messages)
      await all
      await ends.a.close()
      expect(
        differing(
          kept.map(({ data }) => data),
          messages,
        ),
      ).toEqual([])
    })

    it('what nobody takes stays in the ring, and stalls the sender', async () => {
      await using ends = await pair(uri(), { capacity: 4096 })
      let sent = 0
      for (let turns = 0; turns < 50; turns++) {
        while (ends.a.send(pattern(1000, sent))) sent++
        await new Promise((resolve) => setImmediate(resolve))
      }
      expect(sent).toBeLessThanOrEqual(4)
    })
  })

  describe('what rxjs makes of messages', () => {
    it('firstValueFrom, toArray, delay, an async subscriber and a batch that is left: all is as it was sent', async () => {
      await using ends = await pair(uri(), { capacity: 4096 })
      const messages = Array.from({ length: 40 }, (_, i) => pattern(700, i))
      const send = sendAll(ends.a, messages)
      const got = [await firstValueFrom(ends.b.messages)]
      got.push(...(await lastValueFrom(ends.b.messages.pipe(take(9), toArray()))))
      got.push(...(await lastValueFrom(ends.b.messages.pipe(take(10), delay(1), toArray()))))
      await new Promise<void>((resolve) => {
        let left = 10
        ends.b.messages.pipe(take(10)).subscribe(async (message) => {
          await new Promise((later) => setTimeout(later, left))
          got.push(message)
          if (--left === 0) resolve()
        })
      })
      for await (const batch of ends.b.batches({ limit: 1 })) {
        got.push(...batch)
        if (got.length === messages.length) break
      }
      await send
      const sorted = got.map(({ data }) => data).toSorted((x, y) => (x[0] as number) - (y[0] as number))
      const expected = messages.toSorted((x, y) => (x[0] as number) - (y[0] as number))
      expect(differing(sorted, expected)).toEqual([])
    })

    it('messages and views are not taken at the same time', async () => {
      await using ends = await pair(uri())
      const subscription = ends.b.messages.subscribe()
      await expect(lastValueFrom(ends.b.views)).rejects.toMatchObject({ name: 'UsageError' })
      subscription.unsubscribe()
      ends.b.views.subscribe()
      await expect(lastValueFrom(ends.b.messages)).rejects.toMatchObject({ name: 'UsageError' })
    })
  })

  it('batches that are left while nothing arrives end at once, and the next may take', async () => {
    await using ends = await pair(uri())
    const batches = ends.b.batches()
    const waiting = batches.next()
    expect(await batches.return()).toEqual({ done: true, value: undefined })
    expect(await waiting).toEqual({ done: true, value: undefined })
    ends.a.send(pattern(9, 9))
    expect((await firstValueFrom(ends.b.messages)).data).toEqual(pattern(9, 9))
    const other = ends.b.viewBatches()
    const thrown = other.next()
    await expect(other.throw(new Error('enough'))).rejects.toThrow('enough')
    expect(await thrown).toEqual({ done: true, value: undefined })
  })

  describe('in debug mode', () => {
    it('a view that is kept is empty after the release, and the error says where that was', async () => {
      await using ends = await pair(uri(), { debug: true })
      let view: Uint8Array | undefined
      const message = firstValueFrom(ends.b.views)
      ends.b.views.subscribe((one) => {
        view = one.data
        expect(Buffer.from(view).toString()).toBe('mine')
      })
      ends.a.send(Buffer.from('mine'))
      const late = await message
      expect(view).toHaveLength(0)
      expect(() => late.data).toThrow(
        expect.objectContaining({ cause: expect.objectContaining({ message: 'it was released here' }) }),
      )
    })
  })
})
