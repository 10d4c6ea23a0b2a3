import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { memoryGroups } from '../../src/server/memory/cgroups.js'
import { type HostTexts, hostMemory, totalMemory } from '../../src/server/memory/host-memory.js'

const MIB = 2 ** 20
const V2 = '30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n'
const V1 =
  '31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n' +
  '32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n' +
  '35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n'

describe('the control groups that limit a process', () => {
  it.each<[string, string, string, string[]]>([
    [
      'of cgroup v2: each above it',
      '0::/system.slice/rdmakit.service\n',
      V2,
      ['/sys/fs/cgroup', '/sys/fs/cgroup/system.slice', '/sys/fs/cgroup/system.slice/rdmakit.service'],
    ],
    ['in a namespace: where that begins', '0::/\n', V2, ['/sys/fs/cgroup']],
    ['in a namespace, below its beginning', '0::/own\n', V2, ['/sys/fs/cgroup', '/sys/fs/cgroup/own']],
    [
      'of a container without a namespace, with its own part of the hierarchy mounted',
      '0::/docker/0123/own\n',
      V2.replace(' / /sys', ' /docker/0123 /sys'),
      ['/sys/fs/cgroup', '/sys/fs/cgroup/own'],
    ],
    [
      'outside of what is mounted',
      '0::/../other\n',
      V2.replace(' / /sys', ' /docker/0123 /sys'),
      ['/sys/fs/cgroup'],
    ],
    [
      'of cgroup v1: those of the memory controller',
      '5:cpu:/elsewhere\n4:memory:/a/b\n0::/\n',
      V1,
      ['/sys/fs/cgroup/memory', '/sys/fs/cgroup/memory/a', '/sys/fs/cgroup/memory/a/b'],
    ],
    [
      'of both, where both are mounted',
      '4:cpuset,memory:/a\n0::/\n',
      `${V1}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n`,
      ['/sys/fs/cgroup/memory', '/sys/fs/cgroup/memory/a', '/sys/fs/cgroup/unified'],
    ],
    ['at a place with a space', '0::/\n', V2.replace('/sys/fs/cgroup', '/my\\040groups'), ['/my groups']],
    ['without any', '', '22 1 0:21 / / rw - ext4 /dev/vda rw\n', []],
  ])('%s', (_, own, mounts, folders) => {
    expect(memoryGroups(own, mounts).map(({ folder }) => folder)).toEqual(folders)
  })
})

const group = (max: string, current = 0, more: Partial<HostTexts['groups'][number]> = {}) => ({
  ...{ folder: '/group', max, high: '', current: `${current}\n`, stat: '' },
  ...more,
})
const texts = (change: Partial<HostTexts> = {}): HostTexts => ({
  ...{ meminfo: 'MemTotal:  1048576 kB\nMemAvailable:  524288 kB\n', pressure: '' },
  ...{ status: '', limits: '', uidMap: '', groups: [] },
  ...change,
})

describe('what a process can have', () => {
  it.each<[string, HostTexts['groups'], number, string]>([
    ['of a machine without limits', [], 512, 'MemAvailable of the machine'],
    ['in a group without a limit', [group('max\n', 100 * MIB)], 512, 'MemAvailable of the machine'],
    [
      'in one of cgroup v1 without a limit',
      [group('9223372036854771712\n')],
      512,
      'MemAvailable of the machine',
    ],
    ['in a group with one', [group(`${200 * MIB}\n`, 150 * MIB)], 50, 'the memory limit of /group'],
    [
      'below a group with less',
      [group(`${100 * MIB}`, 0, { folder: '/outer' }), group(`${200 * MIB}`)],
      100,
      'the memory limit of /outer',
    ],
    [
      'where memory.high is below memory.max',
      [group(`${200 * MIB}`, 0, { high: `${120 * MIB}\n` })],
      120,
      'the memory limit of /group',
    ],
    [
      'with file pages that can go',
      [group(`${200 * MIB}`, 150 * MIB, { stat: `inactive_file ${20 * MIB}\n` })],
      70,
      'the memory limit of /group',
    ],
    [
      'with those of the groups below, in cgroup v1',
      [group(`${200 * MIB}`, 150 * MIB, { stat: `inactive_file 0\ntotal_inactive_file ${20 * MIB}\n` })],
      70,
      'the memory limit of /group',
    ],
    ['in a group that is full', [group(`${200 * MIB}`, 201 * MIB)], 0, 'the memory limit of /group'],
  ])('%s', (_, groups, mebibytes, limit) => {
    expect(hostMemory(texts({ groups }))).toMatchObject({ available: mebibytes * MIB, limit })
  })

  it('is no more in all than its group may have, which percentages are of', () => {
    expect(totalMemory(texts())).toBe(1024 * MIB)
    expect(totalMemory(texts({ groups: [group('max'), group(`${256 * MIB}\n`)] }))).toBe(256 * MIB)
  })
})

describe('what a process may pin', () => {
  const limits = (limit: number | 'unlimited') =>
    `Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         ${limit}              ${limit}              ${limit === 'unlimited' ? '' : 'bytes'}\n`
  const status = (capabilities: string, pinned: number) =>
    `VmLck:\t 1024 kB\nVmPin:\t ${pinned} kB\nCapEff:\t${capabilities}\n`
  const INITIAL = '         0          0 4294967295\n'
  const IPC_LOCK = '0000000000004000'

  it.each<[string, Partial<HostTexts>, number]>([
    ['is its limit', { limits: limits(8 * MIB), status: status('0', 0) }, 8 * MIB],
    ['less what it has pinned', { limits: limits(8 * MIB), status: status('0', 3072) }, 5 * MIB],
    ['is nothing when that is more', { limits: limits(MIB), status: status('0', 3072) }, 0],
    [
      'is all without a limit',
      { limits: limits('unlimited'), status: status('0', 0) },
      Number.POSITIVE_INFINITY,
    ],
    [
      'is all with CAP_IPC_LOCK',
      { limits: limits(MIB), status: status(IPC_LOCK, 0), uidMap: INITIAL },
      Number.POSITIVE_INFINITY,
    ],
    [
      'is its limit with CAP_IPC_LOCK of another user namespace',
      { limits: limits(MIB), status: status(IPC_LOCK, 0), uidMap: '         0       1000          1\n' },
      MIB,
    ],
    ['is all where the kernel does not tell', {}, Number.POSITIVE_INFINITY],
  ])('%s', (_, change, bytes) => {
    expect(hostMemory(texts(change)).pinnable).toBe(bytes)
  })
})

/** A group of the kernel's, of either version, where this machine lets tests make one. */
function realGroup(): { folder: string; limit: string; procs: string } | undefined {
  for (const [root, limit] of [
    ['/sys/fs/cgroup/memory', 'memory.limit_in_bytes'],
    ['/sys/fs/cgroup', 'memory.max'],
  ] as const) {
    const folder = join(root, `rdmakit-test-${process.pid}`)
    try {
      mkdirSync(folder)
    } catch {
      continue
    }
    if (existsSync(join(folder, limit))) return { folder, limit, procs: join(folder, 'cgroup.procs') }
    rmdirSync(folder)
  }
  return undefined
}

const kernels = realGroup()
// The lab tests this on cgroup v2 anyway: test/lab/guest-tests/swap/memory-limits.test.ts.
it.skipIf(kernels === undefined && process.env.CI === undefined)(
  'a real group of this machine limits what its processes see',
  () => {
    const { folder, limit, procs } = kernels as NonNullable<typeof kernels>
    try {
      writeFileSync(join(folder, limit), String(64 * MIB))
      const program = `
      import { HostMemorySource } from ${JSON.stringify(new URL('../../dist/server/memory/host-memory.js', import.meta.url).href)}
      const source = new HostMemorySource()
      console.log(JSON.stringify({ total: source.total, ...source.read() }))`
      const { stdout, stderr } = spawnSync(
        'sh',
        ['-c', `echo $$ >${procs}; exec "$@"`, '-', process.execPath, '--input-type=module', '-e', program],
        { encoding: 'utf8' },
      )
      expect(stderr).toBe('')
      const seen = JSON.parse(stdout)
      expect(seen.total).toBe(64 * MIB)
      expect(seen.available).toBeLessThanOrEqual(64 * MIB)
      expect(seen.limit).toBe(`the memory limit of ${folder}`)
    } finally {
      rmdirSync(folder)
    }
  },
)
