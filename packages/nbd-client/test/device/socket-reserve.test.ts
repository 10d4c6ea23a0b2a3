import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it, vi } from 'vitest'
import type { AttachOptions } from '../../src/attach/attach-options.js'
import { prepareVolume } from '../../src/device/prepare-volume.js'
import type { Volume } from '../../src/engine/block-volume.js'
import * as reserve from '../../src/kernel/socket-reserve.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

// It would lock this process's memory, and spare it from the OOM killer.
vi.mock('../../src/kernel/kernel.js', () => ({ protectProcess: () => [] }))

afterEach(() => void vi.restoreAllMocks())

const GIB = 2 ** 20
const TCP = [['iwarp://10.0.0.1:7471']]

/** A machine's /proc, with numbers in KiB. */
function machine(free: number | undefined, total: number): string {
  const proc = temporaryFolder()
  mkdirSync(join(proc, 'sys/vm'), { recursive: true })
  if (free !== undefined) writeFileSync(join(proc, 'sys/vm/min_free_kbytes'), `${free}\n`)
  writeFileSync(join(proc, 'meminfo'), `MemTotal:       ${total} kB\nMemFree:         4711 kB\n`)
  return proc
}

it.each<[string, number, number, readonly (readonly string[])[], number]>([
  ['the kernel’s own without huge pages', 4096, GIB, TCP, 45_056],
  ['of a large machine', 16_384, 16 * GIB, TCP, 45_056],
  ['of a small one', 2048, GIB / 2, TCP, 26_214],
  ['where TCP is the second way', 4096, GIB, [['rdma://10.0.0.1:7471', 'iwarp://10.0.0.1:7472']], 45_056],
  ['where one server of two is reached so', 4096, GIB, [['rdma://10.0.0.2:7471'], ...TCP], 45_056],
])(
  'a reserve that is too small for swap over TCP is told, with the remedy: %s',
  (_, free, total, servers, wanted) => {
    expect(reserve.shortReserve(servers, machine(free, total))).toBe(
      `vm.min_free_kbytes is ${free}: swap over iwarp:// is slow and stalls when memory is short; run sysctl -w vm.min_free_kbytes=${wanted}`,
    )
  },
)

it.each<[string, number | undefined, number, readonly (readonly string[])[]]>([
  ['it is large enough', 45_056, GIB, TCP],
  ['it is large enough for a small machine', 26_214, GIB / 2, TCP],
  ['pages need no socket', 1024, GIB, [['rdma://10.0.0.1:7471'], ['shm:///run/server.sock']]],
  ['it cannot be read', undefined, GIB, TCP],
])('nothing is told of the reserve where %s', (_, free, total, servers) => {
  expect(reserve.shortReserve(servers, machine(free, total))).toBeUndefined()
})

it.each([true, false])('attach tells it of swap, and of nothing else: %s', (swap) => {
  vi.spyOn(reserve, 'shortReserve').mockReturnValue('too small')
  const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
  const volume = { onServerFailure() {}, onBackupFailure() {}, engine: { on() {} }, lanes: [] }
  const swapFree = { name: '', granted: true, reason: '' }
  prepareVolume(volume as unknown as Volume, { swap, servers: TCP, swapFree } as unknown as AttachOptions)
  expect(said.mock.calls.map(([text]) => text)).toEqual(
    swap ? ['nbd-client: warning: swap safety: too small\n'] : [],
  )
})
