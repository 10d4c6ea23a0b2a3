import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  applicationData,
  channelBinding,
  decodeHandshake,
  decodeRefusal,
  encodeHandshake,
  encodeRefusal,
  type Handshake,
  isRingRequest,
  refusedBy,
} from '../../src/setup/handshake.js'
import { VERSIONS, Windows } from '../../src/setup/ring-layout.js'

const GOOD: Handshake = {
  version: 4,
  writeWithImmediate: true,
  windows: new Windows(20, 3),
  receiveDepth: 128,
  longest: 64 * 2 ** 20,
  remoteKey: 0xdeadbeef,
  address: 0x7f00_1234_5000n,
  session: { id: '00c0ffee00000001', epoch: 7 },
  applicationData: new Uint8Array([1, 2, 3]),
}

function altered(at: number, ...values: number[]): Uint8Array {
  const bytes = encodeHandshake(GOOD)
  bytes.set(values, at)
  return bytes
}

describe('handshake', () => {
  it('fits the 56 bytes of a RoCE connect with 20 of the application', () => {
    expect(encodeHandshake({ ...GOOD, applicationData: new Uint8Array(20) })).toHaveLength(56)
  })

  it('comes back as it went, also padded with zeros as RoCE does', () => {
    const bytes = new Uint8Array(56)
    bytes.set(encodeHandshake(GOOD))
    expect(decodeHandshake(bytes, 'test')).toEqual(GOOD)
    expect(isRingRequest(bytes)).toBe(true)
    expect(applicationData(bytes)).toEqual(new Uint8Array([1, 2, 3]))
  })

  it('says how many windows the ring has', () => {
    expect([12, 14, 15, 16, 20, 26].map((log2) => Windows.of(log2, 4, 'shm').count)).toEqual([
      1, 1, 1, 2, 4, 7,
    ])
    expect(Windows.of(20, 3, 'iwarp')).toEqual(new Windows(20, 1))
    // The device pins all of it.
    expect(Windows.of(22, 4, 'ibverbs')).toEqual(new Windows(22, 1))
    const { windows } = decodeHandshake(encodeHandshake({ ...GOOD, windows: new Windows(26, 8) }), 'test')
    expect(windows).toEqual(new Windows(26, 8))
    expect(windows.log2Of(0)).toBe(12)
    expect(windows.bytes).toBe(4096 * (1 + 4 * (1 + 4 * (1 + 4 * (1 + 4 * (1 + 4 * (1 + 4 * (1 + 4))))))))
  })

  it('of a connection that is of no session has none', () => {
    const bytes = encodeHandshake({ ...GOOD, session: undefined })
    expect(decodeHandshake(bytes, 'test').session).toBeUndefined()
  })

  it('carries sessions and epochs of all sizes', () => {
    fc.assert(
      fc.property(
        fc.bigInt({ min: 1n, max: 2n ** 64n - 1n }),
        fc.integer({ min: 1, max: 2 ** 32 - 1 }),
        (number, epoch) => {
          const session = { id: number.toString(16).padStart(16, '0'), epoch }
          expect(decodeHandshake(encodeHandshake({ ...GOOD, session }), 'test').session).toEqual(session)
        },
      ),
    )
  })

  it('of an earlier version, which was shorter, is refused for its version', () => {
    const first = altered(4, 1).subarray(0, 24)
    expect(isRingRequest(first)).toBe(true)
    expect(() => decodeHandshake(first, 'test')).toThrow(/version 1, this end speaks 4/)
  })

  it.each([
    ['no magic', altered(0, 0)],
    ['nothing', new Uint8Array()],
    ['a short one', encodeHandshake(GOOD).subarray(0, 35)],
    ['another version', altered(4, 1)],
    ['a later version', altered(4, 5)],
    ['an unknown flag', altered(5, 3)],
    ['a ring too small', altered(6, 11)],
    ['a ring too large', altered(6, 27)],
    ['more application data than bytes', altered(7, 4)],
    ['more application data than allowed', altered(7, 31)],
    ['more windows than fit into the ring', altered(7, (5 << 5) | 3)],
    ['windows, which version 3 has not', altered(4, 3)],
    ['a receive depth too small', altered(8, 0, 7)],
    ['a receive depth too large', altered(8, 2, 1)],
    ['messages in parts of more than 64 MiB', altered(10, 4, 1)],
    ['messages in parts, which version 2 has not', altered(4, 2)],
    ['an address that is not aligned', altered(23, 1)],
    ['no address', altered(16, 0, 0, 0, 0, 0, 0, 0, 0)],
    ['a session without an epoch', altered(32, 0, 0, 0, 0)],
    ['an epoch without a session', altered(24, 0, 0, 0, 0, 0, 0, 0, 0)],
    ['an address whose ring would wrap', altered(16, 255, 255, 255, 255, 255, 255, 255, 0xc0)],
  ])('with %s is refused', (_, bytes) => {
    expect(() => decodeHandshake(bytes, 'test')).toThrow(expect.objectContaining({ code: 'EPROTO' }))
  })

  it('of any bytes decodes or throws EPROTO, nothing else', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 80 }), fc.boolean(), (bytes, withMagic) => {
        if (withMagic && bytes.length > 5) bytes.set([0x72, 0x64, 0x6b, 0x52, 2])
        try {
          decodeHandshake(bytes, 'test')
        } catch (failure) {
          expect(failure).toMatchObject({ code: 'EPROTO' })
        }
      }),
    )
  })

  it.each(VERSIONS)('of version %i says so, and is taken by who speaks it', (version) => {
    const bytes = encodeHandshake({ ...GOOD, windows: Windows.of(20, version, 'shm'), version, longest: 0 })
    expect(bytes[4]).toBe(version)
    expect(decodeHandshake(bytes, 'test', [version]).version).toBe(version)
    const others = VERSIONS.filter((one) => one !== version)
    expect(() => decodeHandshake(bytes, 'test', others)).toThrow(`version ${version}`)
    expect(refusedBy(encodeRefusal('no', version))).toBe(version)
  })

  it('says why a request was refused, in printable ASCII', () => {
    expect(decodeRefusal(encodeRefusal('too many connections'))).toBe('too many connections')
    expect(decodeRefusal(encodeRefusal('evil \x1b[2J'))).toBe('evil [2J')
    expect(decodeRefusal(new Uint8Array(10))).toBeUndefined()
    expect(decodeRefusal(encodeHandshake(GOOD))).toBeUndefined()
  })
})

describe('the binding of a channel', () => {
  const answer = encodeHandshake({ ...GOOD, remoteKey: 5, applicationData: new Uint8Array() })
  const bound = channelBinding(encodeHandshake(GOOD), answer)

  it('is the same when a device has padded what it carried', () => {
    const padded = [encodeHandshake(GOOD), answer].map((bytes) => Buffer.concat([bytes, Buffer.alloc(20)]))
    expect(channelBinding(padded[0] as Buffer, padded[1] as Buffer)).toEqual(bound)
  })

  it('is another one for each bit of either end that is another', () => {
    const ends = [encodeHandshake(GOOD), answer] as const
    const seen = new Set<string>()
    for (const [end, { length }] of ends.entries())
      for (let bit = 0; bit < 8 * length; bit++) {
        const [connect, accept] = ends.map((bytes) => bytes.slice()) as [Uint8Array, Uint8Array]
        const changed = end === 0 ? connect : accept
        changed[bit >> 3] = (changed[bit >> 3] ?? 0) ^ (1 << (bit & 7))
        seen.add(Buffer.from(channelBinding(connect, accept)).toString('hex'))
      }
    expect(seen.size).toBe(8 * (ends[0].length + ends[1].length))
    expect(seen.has(Buffer.from(bound).toString('hex'))).toBe(false)
  })

  it('tells the ends from each other', () => {
    expect(channelBinding(answer, encodeHandshake(GOOD))).not.toEqual(bound)
  })
})
