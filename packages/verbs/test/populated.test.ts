// Which pages of memory are there from the start. Costs a tenth of a second.
import { readFileSync } from 'node:fs'
import { type Access, openDevice } from '@rdmakit/verbs'
import { expect, it } from 'vitest'

const LENGTH = 64 * 2 ** 20
/** proc_sys_vm(5): the kernel may refuse a page that is touched */
const strict = readFileSync('/proc/sys/vm/overcommit_memory', 'utf8').startsWith('2')

/** bytes of the mapping at an address that are there (proc_pid_smaps(5)) */
function resident(address: bigint): number {
  const mappings = readFileSync('/proc/self/smaps', 'utf8').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m)
  const mapping = mappings.find((one) => {
    const [begin, end] = (/^(\w+)-(\w+)/.exec(one) as RegExpExecArray)
      .slice(1)
      .map((word) => BigInt(`0x${word}`))
    return address >= (begin as bigint) && address < (end as bigint)
  })
  return 1024 * Number(/^Rss:\s+(\d+) kB$/m.exec(mapping as string)?.[1])
}

it.each<['iwarp' | 'shm', string, Access, boolean, boolean]>([
  ['iwarp', 'by default', 'remote-write', true, true],
  ['iwarp', 'when they are used', 'remote-write', false, false],
  ['shm', 'by default', 'local-write', true, true],
  ['shm', 'when they are used', 'local-write', false, strict],
  ['shm', 'when they are used, where peers may write, too', 'remote-write', false, strict],
  ['shm', 'by default, where peers may read', 'remote-read', true, true],
])('of %s %s: %s, populated %s', async (name, _, access, populated, all) => {
  using context = openDevice(`${name}0`, name)
  using domain = context.allocateProtectionDomain()
  using region = await domain.allocateMemoryRegion(LENGTH, [access], { populated })
  expect(resident(region.address) > LENGTH / 2).toBe(all)
  expect(new Uint8Array(region.buffer)[LENGTH - 1]).toBe(0)
})
