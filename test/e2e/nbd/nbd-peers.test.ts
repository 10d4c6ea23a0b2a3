// The programs that others wrote, against our export over iwarp:// on loopback.
import { randomFillSync } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { effort } from '../../effort.js'
import {
  must,
  NBD_CLIENT,
  type Program,
  run,
  startServe,
  startServer,
  temporaryFolder,
} from '../helpers/processes.js'

const SIZE = 64 * 2 ** 20
/** requests of qemu-img bench */
const BENCH = String(effort(4000))

const folder = temporaryFolder()
let server: Program
let client: Program
let uri: string

beforeAll(async () => {
  const started = await startServer(['--memory', '64M', '--slab-size', '16M'])
  server = started.program
  const serving = await startServe(started.uri, '64M', folder.path)
  client = serving.program
  uri = serving.uri
})

afterAll(async () => {
  await client?.stop()
  await server?.stop()
  folder[Symbol.dispose]()
})

describe('programs by others against nbd-client serve', () => {
  it('nbdinfo reads the export', () => {
    const info = JSON.parse(must('nbdinfo', ['--json', uri]))
    expect(info.protocol).toMatch(/newstyle/)
    expect(info.exports[0]).toMatchObject({
      'export-size': SIZE,
      is_read_only: false,
      can_flush: true,
      can_fua: true,
      can_trim: true,
      can_zero: true,
      can_multi_conn: true,
      block_size_preferred: 4096,
    })
  })

  it('nbdinfo lists the export', () => {
    expect(must('nbdinfo', ['--list', uri])).toContain('export=""')
  })

  it('nbdcopy brings a random file there and back', () => {
    const source = join(folder.path, 'source')
    const back = join(folder.path, 'back')
    writeFileSync(source, randomFillSync(Buffer.alloc(SIZE)))
    must('nbdcopy', [source, uri])
    must('nbdcopy', [uri, back])
    expect(readFileSync(back).equals(readFileSync(source))).toBe(true)
  })

  it('qemu-io writes, zeroes, reads and discards patterns', () => {
    const commands = [
      'write -P 0xaa 0 1M',
      'read -P 0xaa 0 1M',
      'write -z 256k 128k',
      'read -P 0 256k 128k',
      'read -P 0xaa 128k 128k',
      'discard 512k 64k',
      'write -P 0x5b 30M 8M',
      'read -P 0x5b 30M 8M',
      'write -P 0x11 4095 2',
      'read -P 0x11 4095 2',
      'read -P 0xaa 4097 1000',
      'writev -P 0x77 48M 4k 8k 512',
      'read -P 0x77 48M 12800',
      'flush',
    ]
    const out = must('qemu-io', ['-f', 'raw', ...commands.flatMap((command) => ['-c', command]), uri])
    expect(out).not.toMatch(/fail|error/i)
  })

  it('qemu-img bench reads at depth 16', () => {
    const out = must('qemu-img', ['bench', '-f', 'raw', '-c', BENCH, '-d', '16', '-s', '4096', uri])
    expect(out).toMatch(/Run completed in [\d.]+ seconds/)
  })

  it('qemu-img bench writes too', () => {
    const out = must('qemu-img', ['bench', '-w', '-f', 'raw', '-c', BENCH, '-d', '16', '-s', '4096', uri])
    expect(out).toMatch(/Run completed in [\d.]+ seconds/)
  })

  it('fio verifies random writes from four jobs', () => {
    const out = must('fio', [
      '--name=verify',
      '--ioengine=nbd',
      `--uri=${uri}`,
      '--rw=randwrite',
      '--bs=4k',
      '--iodepth=16',
      '--numjobs=4',
      '--size=8m',
      '--offset_increment=8m',
      '--verify=crc32c',
      '--verify_fatal=1',
      '--verify_state_save=0',
      '--output-format=json',
    ])
    const { jobs } = JSON.parse(out.slice(out.indexOf('{')))
    expect(jobs).toHaveLength(4)
    for (const job of jobs) {
      expect(job.error).toBe(0)
      expect(job.read.total_ios).toBe(2048)
      expect(job.write.total_ios).toBe(2048)
    }
  })

  it('libnbd gets the errno that the protocol names for each bad request', () => {
    const script = `
import errno, nbd
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri("${uri}")
size = h.get_size()
def code(call):
    try:
        call()
    except nbd.Error as e:
        return errno.errorcode[e.errnum]
    return "OK"
print(code(lambda: h.pread(4096, size)))
print(code(lambda: h.pwrite(b"x" * 4096, size)))
print(code(lambda: h.trim(4096, size)))
print(code(lambda: h.zero(4096, size)))
print(code(lambda: h.cache(4096, 0)))
print(code(lambda: h.pread(4096, size - 4096)))
h.shutdown()
`
    expect(must('/usr/bin/python3', ['-c', script]).trim().split('\n')).toEqual([
      'EINVAL',
      'ENOSPC',
      'EINVAL',
      'ENOSPC',
      'OK',
      'OK',
    ])
  })

  it('qemu-nbd lists the export', () => {
    const socket = new URL(uri).searchParams.get('socket') as string
    const { stdout } = run('qemu-nbd', ['--list', '-k', socket])
    expect(stdout).toMatch(/exports available: 1/)
  })

  it('nbd-client status tells of it', () => {
    const out = must('env', [`RDMAKIT_RUN=${folder.path}`, process.execPath, NBD_CLIENT, 'status', '--json'])
    const [status] = JSON.parse(out)
    expect(status).toMatchObject({ mode: 'serve', target: uri, size: SIZE, swap: false })
    expect(status.servers).toMatchObject([{ state: 'up', slabs: 4 }])
    // qemu-img's are zeros, over as many pages as it writes: fio's 8,192 stay at least.
    expect(status.statistics.writtenPages).toBeGreaterThan(effort(1) > 1 ? 8_191 : 15_000)
  })
})
