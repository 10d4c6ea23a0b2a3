import { describe, expect, it } from 'vitest'
import { formatSize, parseSize, parseSizeInUnits } from '../src/command-line/size.js'

describe('sizes', () => {
  it.each([
    ['4096', 4096],
    ['64M', 64 * 2 ** 20],
    ['1.5G', 1.5 * 2 ** 30],
    ['2GiB', 2 * 2 ** 30],
    ['10kb', 10 * 1024],
    ['1T', 2 ** 40],
  ])('%s is %d bytes', (text, bytes) => expect(parseSize(text, '--size')).toBe(bytes))

  it.each(['', 'abc', '-1', '0', '1X', '1.3', '0x10', '9999999T'])('%j is refused by name', (text) => {
    expect(() => parseSize(text, '--memory')).toThrow(/^--memory/)
  })

  it('says the next multiple', () => {
    expect(() => parseSizeInUnits('5000', '--size', 4096)).toThrow(/multiple of 4096.*8192/)
  })

  it('prints sizes for people', () => {
    expect(formatSize(4096)).toBe('4 KiB')
    expect(formatSize(1.5 * 2 ** 30)).toBe('1.5 GiB')
    expect(formatSize(100)).toBe('100 bytes')
  })
})
