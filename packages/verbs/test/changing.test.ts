// Memory that may change while JavaScript stands still.
import { expect, it } from 'vitest'
import { openDevice } from '../src/index.js'
import { mayChange } from '../src/internal.js'

it.each(['shm', 'iwarp'] as const)(
  'memory that a device of %s may write to may change, other memory not',
  async (provider) => {
    using domain = openDevice(`${provider}0`, provider).allocateProtectionDomain()
    const [read, written, later] = [0, 1, 2].map(() => new Uint8Array(64)) as [
      Uint8Array<ArrayBuffer>,
      Uint8Array<ArrayBuffer>,
      Uint8Array<ArrayBuffer>,
    ]
    expect(mayChange(read.buffer)).toBe(false)
    using _read = domain.registerMemoryRegion(read, ['remote-read'])
    expect(mayChange(read.buffer)).toBe(false)
    using _written = domain.registerMemoryRegion(written)
    expect(mayChange(written.buffer)).toBe(true)
    using _async = await domain.registerMemoryRegionAsync(later, ['remote-read'])
    expect(mayChange(later.buffer)).toBe(false)
    _async.reregister({ access: ['remote-write'] })
    expect(mayChange(later.buffer)).toBe(true)
    using own = await domain.allocateMemoryRegion(4096, ['remote-read'])
    expect(mayChange(own.buffer)).toBe(true)
    expect(mayChange(new SharedArrayBuffer(8))).toBe(true)
  },
)
