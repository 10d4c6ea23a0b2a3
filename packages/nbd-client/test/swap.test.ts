import { describe, expect, it } from 'vitest'
import { isSwap } from '../src/swap.js'

const table = (...lines: string[]) =>
  ['Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority', ...lines, ''].join('\n')
const partition = (path: string) => `${path.padEnd(40)}partition\t131068\t\t256\t\t10`

describe('a device is swap', () => {
  it('by the path at which swapon found it', () => {
    expect(isSwap('/dev/nbd1', table(partition('/dev/sda2'), partition('/dev/nbd1')))).toBe(true)
  })

  it('when the mount namespace in which swapon found it is gone', () => {
    expect(isSwap('/dev/nbd0', table(partition('/nbd0')))).toBe(true)
  })

  it('when its node was removed and made anew', () => {
    expect(isSwap('/dev/nbd0', table(partition('/dev/nbd0\\040(deleted)')))).toBe(true)
  })

  it('but not when one with a longer name is, a file of its name, or nothing', () => {
    expect(isSwap('/dev/nbd1', table(partition('/dev/nbd10'), partition('/dev/xnbd1')))).toBe(false)
    expect(isSwap('/dev/nbd1', table(partition('/srv/nbd1').replace('partition', 'file\t')))).toBe(false)
    expect(isSwap('/dev/nbd1', table())).toBe(false)
  })
})
