import { deferred } from '@rdmakit/verbs/internal'
import { firstValueFrom, map, take, toArray } from 'rxjs'
import { afterEach, describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import type { ConnectOptions, RingMessage, RingServerOptions } from '../../src/index.js'
import { pair as connected } from '../helpers/pair.js'
import { differing, HANG_MS, pattern, sendAll } from '../helpers/processes.js'
import { until } from '../helpers/states.js'

const open: AsyncDisposable[] = []

/** Both ends of one connection, in this process. */
async function pair(server: Partial<RingServerOptions> = {}, client: ConnectOptions = {}) {
  const made = await connected('iwarp://127.0.0.1:0', server, client)
  open.push(made)
  return made
}

afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one[Symbol.asyncDispose]()))
})

const bytes = (text: string) => new TextEncoder().encode(text)

describe('messages', () => {
  it('arrive once, in order, as they were sent', async () => {
    const { a, b } = await pair()
    const got = firstValueFrom(
      b.messages.pipe(
        map((message) => message.copy()),
        take(100),
        toArray(),
      ),
    )
    for (let i = 0; i < 100; i++) expect(a.send(pattern(i * 3, i))).toBe(true)
    expect(await got).toEqual(Array.from({ length: 100 }, (_, i) => pattern(i * 3, i)))
  })

  it('wait in the ring until somebody subscribes, and go on when one leaves', async () => {
    const { a, b } = await pair()
    for (const text of ['one', 'two', 'three']) a.send(bytes(text))
    await eventually(() => b.statistics().messagesWaiting === 3)
    const texts = b.messages.pipe(map((message) => message.text()))
    expect(await firstValueFrom(texts)).toBe('one')
    expect(await firstValueFrom(texts.pipe(take(2), toArray()))).toEqual(['two', 'three'])
  })

  it('are released when the callback returns, as views', async () => {
    const { a, b } = await pair()
    const message = firstValueFrom(b.views)
    a.send(bytes('gone'))
    const late = await message
    expect(late.isReleased).toBe(true)
    expect(() => late.data).toThrow(/copy\(\) or retain\(\)/)
    expect(() => late.copy()).toThrow()
  })

  it('stay readable while retained, even after the connection has ended', async () => {
    const { a, b } = await pair()
    const kept: RingMessage[] = []
    b.views.subscribe((message) => kept.push(message.retain()))
    a.send(bytes('kept'))
    await expect.poll(() => kept.length).toBe(1)
    await a.close()
    await b.closed
    expect(kept[0]?.text()).toBe('kept')
    kept[0]?.release()
    expect(() => kept[0]?.data).toThrow()
    kept[0]?.release()
  })

  it('may be empty, and as long as maxMessageLength', async () => {
    const { a, b } = await pair({ capacity: 65536 })
    expect(a.maxMessageLength).toBe(65536 / 2 - 16)
    const lengths = firstValueFrom(
      b.messages.pipe(
        map((message) => message.length),
        take(4),
        toArray(),
      ),
    )
    await sendAll(
      a,
      [0, a.maxMessageLength, a.maxMessageLength, 1].map((length) => new Uint8Array(length)),
    )
    expect(await lengths).toEqual([0, a.maxMessageLength, a.maxMessageLength, 1])
  })

  it('that are too long throw EMSGSIZE and leave the connection whole', async () => {
    const { a, b } = await pair({ capacity: 4096 })
    expect(() => a.send(new Uint8Array(a.maxMessageLength + 1))).toThrow(
      expect.objectContaining({ code: 'EMSGSIZE' }),
    )
    b.handle((request) => request.copy())
    expect(await a.request(bytes('still here'))).toEqual(bytes('still here'))
  })

  it('are copied at send: the caller may use its buffer again', async () => {
    const { a, b } = await pair()
    const buffer = bytes('first')
    a.send(buffer)
    buffer.fill(0)
    expect(await firstValueFrom(b.messages.pipe(map((message) => message.text())))).toBe('first')
  })

  it('must be a Uint8Array', async () => {
    const { a } = await pair()
    expect(() => a.send('text' as unknown as Uint8Array)).toThrow(TypeError)
  })
})

describe('back-pressure', () => {
  it('refuses with false when the ring is full, and writable() resolves when there is room', async () => {
    const { a, b } = await pair({ capacity: 4096 })
    let sent = 0
    while (a.send(new Uint8Array(1000))) sent++
    expect(sent).toBeGreaterThan(1)
    expect(sent).toBeLessThan(8)
    let resolved = false
    const writable = a.writable().then(() => {
      resolved = true
    })
    // If its arrival could free anything, that would be known before the reply is sent.
    await eventually(() => b.statistics().messagesWaiting === sent)
    b.send(bytes('all arrived'))
    await firstValueFrom(a.messages)
    expect(resolved).toBe(false)
    b.messages.subscribe()
    await writable
    expect(a.send(new Uint8Array(1000))).toBe(true)
  })

  it('keeps every message of a sender that waits, through many wraps', async () => {
    const { a, b } = await pair({ capacity: 4096 })
    const messages = Array.from({ length: effort(200) }, (_, i) => pattern((i * 97) % 2000, i))
    const got = firstValueFrom(
      b.messages.pipe(
        map((message) => message.copy()),
        take(messages.length),
        toArray(),
      ),
    )
    expect(await sendAll(a, messages)).toBeGreaterThan(0)
    expect(differing(await got, messages)).toEqual([])
  })

  it('writable() rejects when the connection ends, and when its signal aborts', async () => {
    const { a, b } = await pair({ capacity: 4096 })
    while (a.send(new Uint8Array(1000)));
    const aborted = new AbortController()
    const first = a.writable({ signal: aborted.signal })
    aborted.abort(new Error('enough'))
    await expect(first).rejects.toThrow('enough')
    const second = expect(a.writable()).rejects.toMatchObject({ code: 'ECONNRESET' })
    await b.close({ drain: false })
    await second
  })

  it('resolves at once when nothing was refused', async () => {
    const { a } = await pair()
    // Before any other work has its turn, even work that is due.
    const first = await Promise.race([
      a.writable().then(() => 'writable'),
      new Promise((resolve) => setImmediate(() => resolve('a turn later'))),
    ])
    expect(first).toBe('writable')
  })
})

describe('requests', () => {
  it('get their own responses, whatever the order of the answers', async () => {
    const { a, b } = await pair()
    const waiting: (() => void)[] = []
    b.handle(async (request) => {
      const number = request.data[0] as number
      await new Promise<void>((resolve) => {
        if (waiting.push(resolve) < 10) return
        for (const go of waiting.reverse()) go()
      })
      return new Uint8Array([number, request.data[0] as number])
    })
    const answers = await Promise.all(Array.from({ length: 10 }, (_, i) => a.request(new Uint8Array([i]))))
    expect(answers).toEqual(Array.from({ length: 10 }, (_, i) => new Uint8Array([i, i])))
  })

  it('go both ways at once', async () => {
    const { a, b } = await pair()
    a.handle((request) => bytes(`a: ${request.text()}`))
    b.handle((request) => bytes(`b: ${request.text()}`))
    const [left, right] = await Promise.all([a.request(bytes('x')), b.request(bytes('y'))])
    expect([left, right]).toEqual([bytes('b: x'), bytes('a: y')])
  })

  it('time out alone', async () => {
    const { a, b } = await pair()
    b.handle((request) => (request.length === 0 ? new Promise(() => {}) : request.copy()))
    const expired = { name: 'VerbsError', code: 'ETIMEDOUT' }
    const first = expect(a.request(new Uint8Array(), { timeout: 30 })).rejects.toMatchObject(expired)
    const second = expect(a.request(new Uint8Array(), { timeout: 60 })).rejects.toMatchObject(expired)
    await first
    expect(await a.request(bytes('ok'))).toEqual(bytes('ok'))
    await second
  })

  it('drop a response that comes after the timeout', async () => {
    const { a, b } = await pair()
    const late = deferred<void>()
    b.handle(async (request) => {
      if (request.length === 0) await late.promise
      return request.copy()
    })
    await expect(a.request(new Uint8Array(), { timeout: 20 })).rejects.toMatchObject({ code: 'ETIMEDOUT' })
    late.resolve()
    // Its response comes behind that one.
    expect(await a.request(bytes('ok'))).toEqual(bytes('ok'))
    expect(a.statistics().framesReceived).toBe(2)
  })

  it('abort with their signal', async () => {
    const { a, b } = await pair()
    const controller = new AbortController()
    b.handle(() => {
      controller.abort(new Error('changed my mind'))
      return new Promise(() => {})
    })
    const request = a.request(new Uint8Array(1), { signal: controller.signal })
    await expect(request).rejects.toThrow('changed my mind')
    await expect(a.request(new Uint8Array(1), { signal: controller.signal })).rejects.toThrow(
      'changed my mind',
    )
  })

  it('carry an error of the handler to the requester, sync or async', async () => {
    const { a, b } = await pair()
    b.handle((request) => {
      const failure = Object.assign(new Error('no such slab'), { code: 'ENOENT' })
      if (request.length === 0) throw failure
      return Promise.reject(new Error('without a code'))
    })
    await expect(a.request(new Uint8Array())).rejects.toMatchObject({
      name: 'RemoteError',
      code: 'ENOENT',
      message: 'no such slab',
    })
    await expect(a.request(new Uint8Array(1))).rejects.toMatchObject({ code: 'EREMOTEIO' })
  })

  it('fail when the handler returns something else than bytes', async () => {
    const { a, b } = await pair()
    b.handle(() => 'text' as unknown as Uint8Array)
    await expect(a.request(new Uint8Array())).rejects.toMatchObject({
      name: 'RemoteError',
      code: 'EREMOTEIO',
    })
  })

  it('fail with ENOSYS without a handler', async () => {
    const { a } = await pair()
    await expect(a.request(new Uint8Array())).rejects.toMatchObject({ name: 'RemoteError', code: 'ENOSYS' })
  })

  it('fail with EMSGSIZE when they or their response are too long', async () => {
    const { a, b } = await pair({}, { capacity: 4096, maxMessageSize: 65_536 })
    b.handle(() => new Uint8Array(65_537))
    await expect(a.request(new Uint8Array(2 ** 26 + 1))).rejects.toMatchObject({
      name: 'VerbsError',
      code: 'EMSGSIZE',
    })
    await expect(a.request(new Uint8Array(1))).rejects.toMatchObject({
      name: 'RemoteError',
      code: 'EMSGSIZE',
    })
  })

  it('wait for room when there are more than the ring holds', async () => {
    const { a, b } = await pair({ capacity: 4096, receiveDepth: 8 }, { capacity: 4096, receiveDepth: 8 })
    b.handle((request) => request.copy())
    const messages = Array.from({ length: 100 }, (_, i) => pattern(900, i))
    const answers = await Promise.all(messages.map((one) => a.request(one, { timeout: HANG_MS })))
    expect(differing(answers, messages)).toEqual([])
  })
})

describe('closing', () => {
  it('in good order settles both ends without a reason', async () => {
    const { a, b } = await pair()
    await a.close()
    expect(await a.closed).toBeUndefined()
    expect(await b.closed).toBeUndefined()
    await a.close()
  })

  it('lets what is under way finish', async () => {
    const { a, b } = await pair()
    b.handle(async (request) => {
      await until(a.states, 'draining')
      return request.copy()
    })
    const texts = firstValueFrom(
      b.messages.pipe(
        map((message) => message.text()),
        toArray(),
      ),
    )
    const request = a.request(bytes('slow'))
    a.send(bytes('last words'))
    await a.close()
    expect(await request).toEqual(bytes('slow'))
    expect(await texts).toEqual(['last words'])
  })

  it('by both at once is in good order too', async () => {
    const { a, b } = await pair()
    await Promise.all([a.close(), b.close()])
    expect(await Promise.all([a.closed, b.closed])).toEqual([undefined, undefined])
  })

  it('refuses what comes later with ESHUTDOWN', async () => {
    const { a } = await pair()
    await a.close()
    expect(() => a.send(bytes('late'))).toThrow(expect.objectContaining({ code: 'ESHUTDOWN' }))
    await expect(a.request(bytes('late'))).rejects.toMatchObject({ code: 'ESHUTDOWN' })
    await expect(a.writable()).rejects.toMatchObject({ code: 'ESHUTDOWN' })
    expect(a.isOpen).toBe(false)
  })

  it('without draining rejects requests at once', async () => {
    const { a, b } = await pair()
    const asked = deferred<void>()
    b.handle(() => {
      asked.resolve()
      return new Promise(() => {})
    })
    const request = a.request(bytes('x'), { timeout: HANG_MS })
    await asked.promise
    // A drain gives up with ECONNRESET, later.
    await Promise.all([
      a.close({ drain: false, timeout: HANG_MS }),
      expect(request).rejects.toMatchObject({ code: 'ECANCELED' }),
    ])
    expect(await b.closed).toMatchObject({ code: 'ECONNRESET' })
  })

  it('gives up draining after the timeout', async () => {
    const { a, b } = await pair()
    b.handle(() => new Promise(() => {}))
    const request = a.request(bytes('x'), { timeout: 20_000 }).catch((failure) => failure)
    await a.close({ timeout: 50 })
    expect(await a.closed).toMatchObject({ code: 'ECONNRESET' })
    expect(await request).toMatchObject({ code: 'ECONNRESET' })
  })

  it('completes messages, also for one who subscribes later', async () => {
    const { a, b } = await pair()
    a.send(bytes('before'))
    await a.close()
    await b.closed
    const late = b.messages.pipe(
      map((message) => message.text()),
      toArray(),
    )
    expect(await firstValueFrom(late)).toEqual(['before'])
    expect(await firstValueFrom(b.messages.pipe(toArray()))).toEqual([])
  })
})
