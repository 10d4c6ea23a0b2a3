import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  applicationData,
  decodeHandshake,
  decodeRefusal,
  encodeHandshake,
  encodeRefusal,
  type Handshake,
  isRingRequest,
} from '../src/handshake.js'

const GOOD: Handshake = {
  writeWithImmediate: true,
  log2Capacity: 20,
  receiveDepth: 128,
  remoteKey: 0xdeadbeef,
  address: 0x7f00_1234_5000n,
  applicationData: new Uint8Array([1, 2, 3]),
}

function altered(at: number, ...values: number[]): Uint8Array {
  const bytes = encodeHandshake(GOOD)
  bytes.set(values, at)
  return bytes
}

describe('handshake', () => {
  it('fits the 56 bytes of a RoCE connect with 32 of the application', () => {
    expect(encodeHandshake({ ...GOOD, applicationData: new Uint8Array(32) })).toHaveLength(56)
  })

  it('comes back as it went, also padded with zeros as RoCE does', () => {
    const bytes = new Uint8Array(56)
    bytes.set(encodeHandshake(GOOD))
    expect(decodeHandshake(bytes, 'test')).toEqual(GOOD)
    expect(isRingRequest(bytes)).toBe(true)
    expect(applicationData(bytes)).toEqual(new Uint8Array([1, 2, 3]))
  })

  it.each([
    ['no magic', altered(0, 0)],
    ['nothing', new Uint8Array()],
    ['a short one', encodeHandshake(GOOD).subarray(0, 23)],
    ['another version', altered(4, 2)],
    ['an unknown flag', altered(5, 3)],
    ['a ring too small', altered(6, 11)],
    ['a ring too large', altered(6, 27)],
    ['more application data than bytes', altered(7, 4)],
    ['more application data than allowed', altered(7, 255)],
    ['a receive depth too small', altered(8, 0, 7)],
    ['a receive depth too large', altered(8, 2, 1)],
    ['a reserved field', altered(10, 0, 1)],
    ['an address that is not aligned', altered(23, 1)],
    ['no address', altered(16, 0, 0, 0, 0, 0, 0, 0, 0)],
    ['an address whose ring would wrap', altered(16, 255, 255, 255, 255, 255, 255, 255, 0xc0)],
  ])('with %s is refused', (_, bytes) => {
    expect(() => decodeHandshake(bytes, 'test')).toThrow(expect.objectContaining({ code: 'EPROTO' }))
  })

  it('of any bytes decodes or throws EPROTO, nothing else', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 80 }), fc.boolean(), (bytes, withMagic) => {
        if (withMagic && bytes.length > 5) bytes.set([0x72, 0x64, 0x6b, 0x52, 1])
        try {
          decodeHandshake(bytes, 'test')
        } catch (failure) {
          expect(failure).toMatchObject({ code: 'EPROTO' })
        }
      }),
    )
  })

  it('says why a request was refused, in printable ASCII', () => {
    expect(decodeRefusal(encodeRefusal('too many connections'))).toBe('too many connections')
    expect(decodeRefusal(encodeRefusal('evil \x1b[2J'))).toBe('evil [2J')
    expect(decodeRefusal(new Uint8Array(10))).toBeUndefined()
    expect(decodeRefusal(encodeHandshake(GOOD))).toBeUndefined()
  })
})
