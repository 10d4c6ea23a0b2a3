// The NBD specification's demands on a server, tested by libnbd and its tools, qemu and FUSE.
import { spawn } from 'node:child_process'
import { randomFillSync } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  must,
  type Program,
  run,
  startServe,
  startServer,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

const MIB = 2 ** 20
const folder = temporaryFolder()
const path = (name: string) => join(folder.path, name)
const programs: Program[] = []
let socket: string
const uri = (name = '') => `nbd+unix:///${name}?socket=${socket}`

beforeAll(async () => {
  const { program: server, uri: swap } = await startServer(['--memory', '512M'])
  programs.unshift(server)
  const exports = [
    'disk,size=192M,description=all of it, nearly',
    'tail,offset=128M,size=64M',
    'sealed,size=64M,read-only,description=look, do not touch',
    'fuse,offset=192M',
  ]
  const { program, socket: made } = await startServe(
    swap,
    '256M',
    folder.path,
    exports.flatMap((each) => ['--export', each]),
  )
  programs.unshift(program)
  socket = made
})

afterAll(async () => {
  for (const program of programs) await program.stop()
  folder[Symbol.dispose]()
})

/** Runs Python with a connected libnbd handle `h` that lets every mistake through; gives its lines. */
function libnbd(script: string, name = ''): string[] {
  const prologue = `
import errno, nbd
def connect(name="${name}", contexts=True, structured=True):
    h = nbd.NBD()
    h.set_strict_mode(0)
    h.set_request_structured_replies(structured)
    if contexts:
        h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri("nbd+unix:///" + name + "?socket=${socket}")
    return h
def code(call):
    try:
        call()
    except nbd.Error as e:
        return errno.errorcode[e.errnum]
    return "OK"
h = connect()
`
  return must('/usr/bin/python3', ['-c', prologue + script])
    .trim()
    .split('\n')
}

it('the URI that is printed is one, whatever is in the path of the socket', async () => {
  const odd = path('a&b#c;d=e%20 ü')
  mkdirSync(odd)
  const { program: server, uri: swap } = await startServer(['--memory', '64M'])
  const { program, uri: printed } = await startServe(swap, '16M', odd)
  expect(must('nbdinfo', ['--size', printed]).trim()).toBe(String(16 * MIB))
  await program.stop()
  await server.stop()
})

describe('exports', () => {
  it('nbdinfo lists each with its size and description, the first as the default', () => {
    const info = JSON.parse(must('nbdinfo', ['--json', '--list', uri()]))
    expect(
      info.exports.map((each: Record<string, unknown>) => [
        each['export-name'],
        each['export-size'],
        each.is_read_only,
        each.description,
      ]),
    ).toEqual([
      ['disk', 192 * MIB, false, 'all of it, nearly'],
      ['tail', 64 * MIB, false, undefined],
      ['sealed', 64 * MIB, true, 'look, do not touch'],
      ['fuse', 64 * MIB, false, undefined],
    ])
    expect(must('nbdinfo', ['--size', uri()]).trim()).toBe(String(192 * MIB))
  })

  it('qemu-nbd lists them with all that an export can do', () => {
    const out = must('qemu-nbd', ['--list', '-k', socket])
    expect(out).toMatch(/exports available: 4/)
    expect(out).toMatch(/export: 'sealed'/)
    expect(out).toMatch(/min block: 1\n\s+opt block: 4096\n\s+max block: 33554432/)
    expect(out).toMatch(/flags: .*flush fua trim zeroes df multi cache fast-zero/)
    expect(out).toMatch(/available meta contexts: 1\n\s+base:allocation/)
  })

  it('an unknown name is refused', () => {
    expect(run('nbdinfo', [uri('nothing')]).status).not.toBe(0)
  })

  it('views of the same pages see the same bytes', () => {
    const io = (name: string, ...commands: string[]) =>
      must('qemu-io', ['-f', 'raw', ...commands.flatMap((each) => ['-c', each]), uri(name)])
    io('tail', 'write -P 0x42 4k 12k')
    expect(io('disk', `read -P 0x42 ${128 * 1024 + 4}k 12k`)).not.toMatch(/fail/i)
  })

  it('a read-only one refuses each kind of writing with EPERM', () => {
    const script = `
print(code(lambda: h.pwrite(b"x" * 512, 0)), code(lambda: h.zero(512, 0)), code(lambda: h.trim(512, 0)))
print(code(lambda: h.pread(512, 0)), code(lambda: h.flush()), code(lambda: h.cache(512, 0)), h.is_read_only())
`
    expect(libnbd(script, 'sealed')).toEqual(['EPERM EPERM EPERM', 'OK OK OK True'])
  })
})

describe('errors, by libnbd', () => {
  it('has the code of the specification for each mistake', () => {
    const script = `
size = h.get_size()
for call in [
    lambda: h.pread(1, size), lambda: h.pread(2, size - 1), lambda: h.pread(512, 2**63 - 512),
    lambda: h.trim(512, size), lambda: h.cache(512, size), lambda: h.block_status(512, size, lambda *a: 0),
    lambda: h.pread(0, 0), lambda: h.pread(33 * 2**20, 0), lambda: h.pread(512, 0, 1 << 9),
    lambda: h.flush(nbd.CMD_FLAG_DF), lambda: h.trim(512, 0, nbd.CMD_FLAG_NO_HOLE),
]:
    print(code(call), end=" ")
print()
for call in [
    lambda: h.pwrite(b"x", size), lambda: h.pwrite(b"x" * 2, size - 1), lambda: h.zero(512, size),
]:
    print(code(call), end=" ")
print()
print(code(lambda: h.pread(2 * 2**20, 0, nbd.CMD_FLAG_DF)))
print(code(lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO)), code(lambda: h.zero(4096, 1, nbd.CMD_FLAG_FAST_ZERO)))
print(code(lambda: h.zero(4096, 1)), code(lambda: h.pwrite(b"x" * 512, 0, nbd.CMD_FLAG_FUA)))
print(code(lambda: h.pread(4096, size - 4096)))
`
    expect(libnbd(script).map((line) => line.trim())).toEqual([
      Array(11).fill('EINVAL').join(' '),
      'ENOSPC ENOSPC ENOSPC',
      'EOVERFLOW',
      'OK ENOTSUP',
      'OK OK',
      'OK',
    ])
  })

  it('says in words what is wrong', () => {
    const script = `
h = nbd.NBD()
h.set_debug(True)
lines = []
h.set_debug_callback(lambda context, message: lines.append(message))
h.set_strict_mode(0)
h.connect_uri("${uri()}")
print(code(lambda: h.pwrite(b"x", h.get_size())))
print(any("beyond the end of the export" in line for line in lines))
`
    expect(libnbd(script)).toEqual(['ENOSPC', 'True'])
  })

  it('block status without the context is refused', () => {
    expect(
      libnbd('h = connect(contexts=False)\nprint(h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION))'),
    ).toEqual(['False'])
    expect(
      libnbd('h = connect(structured=False)\nprint(h.can_df(), h.get_structured_replies_negotiated())'),
    ).toEqual(['False False'])
  })
})

describe('holes and their map', () => {
  it('parts of pages at the edges of a TRIM are left as they were, and those of WRITE_ZEROES are zeros', () => {
    const script = `
base = 96 * 2**20
for call in [h.trim, h.zero]:
    h.pwrite(b"a" * 16384, base)
    call(8192, base + 2048)
    found = bytes(h.pread(16384, base))
    print([found[i:i + 2048] == b"a" * 2048 for i in range(0, 16384, 2048)], found.count(b"\\0"))
`
    const whole = '[True, True, False, False, True, True, True, True] 4096'
    expect(libnbd(script)).toEqual([whole, '[True, False, False, False, False, True, True, True] 8192'])
  })

  it('pread_structured tells data from holes, unless asked not to fragment', () => {
    const script = `
base = 64 * 2**20
h.trim(1 << 20, base)
h.pwrite(b"a" * 8192, base + 4096)
for flags in [0, nbd.CMD_FLAG_DF]:
    chunks = []
    def chunk(data, offset, status, error):
        chunks.append(({nbd.READ_DATA: "data", nbd.READ_HOLE: "hole"}[status], offset - base, len(data)))
    buffer = h.pread_structured(16384, base, chunk, flags)
    assert bytes(buffer) == b"\\0" * 4096 + b"a" * 8192 + b"\\0" * 4096
    print(chunks)
`
    expect(libnbd(script)).toEqual([
      "[('hole', 0, 4096), ('data', 4096, 8192), ('hole', 12288, 4096)]",
      "[('data', 0, 16384)]",
    ])
  })

  it('block_status honours REQ_ONE and NO_HOLE', () => {
    const script = `
base = 80 * 2**20
h.trim(1 << 20, base)
h.pwrite(b"a" * 4096, base + 4096)
h.zero(8192, base + 16384, nbd.CMD_FLAG_NO_HOLE)
for flags in [0, nbd.CMD_FLAG_REQ_ONE]:
    found = []
    def extent(context, offset, entries, error):
        found.append((context, entries))
    h.block_status(32768, base, extent, flags)
    print(found)
`
    expect(libnbd(script)).toEqual([
      "[('base:allocation', [4096, 3, 4096, 0, 8192, 3, 8192, 2, 8192, 3])]",
      "[('base:allocation', [4096, 3])]",
    ])
  })

  it('nbdinfo --map shows what was written, in extents that cover the export', () => {
    must('qemu-io', ['-f', 'raw', '-c', 'discard 0 128M', '-c', 'write 1M 1M', '-c', 'write -z 3M 1M', uri()])
    const map = JSON.parse(must('nbdinfo', ['--map', '--json', uri()]))
    expect(map.slice(0, 5)).toMatchObject([
      { offset: 0, length: MIB, type: 3, description: 'hole,zero' },
      { offset: MIB, length: MIB, type: 0, description: 'data' },
      { offset: 2 * MIB, length: MIB, type: 3 },
      { offset: 3 * MIB, length: MIB, type: 2, description: 'zero' },
      { offset: 4 * MIB, type: 3 },
    ])
    const end = map.at(-1)
    expect(end.offset + end.length).toBe(192 * MIB)
    for (let i = 1; i < map.length; i++) expect(map[i].type).not.toBe(map[i - 1].type)
  })
})

describe('copies and images', () => {
  it('nbdcopy with 4 connections both ways keeps a sparse file sparse', () => {
    const piece = randomFillSync(Buffer.alloc(8 * MIB))
    writeFileSync(path('source'), piece)
    must('truncate', ['-s', '192M', path('source')])
    must('dd', [
      `if=${path('source')}`,
      `of=${path('source')}`,
      ...'bs=1M count=8 seek=100 conv=notrunc'.split(' '),
    ])
    must('nbdcopy', ['--connections=4', path('source'), uri()])
    must('nbdcopy', ['--connections=4', uri(), path('back')])
    must('cmp', [path('source'), path('back')])
    expect(Number(must('du', ['-k', path('back')]).split('\t')[0])).toBeLessThan(64 * 1024)
  })

  it('qemu-img converts to it and from it, and compares equal', () => {
    must('qemu-img', ['convert', '-n', '-f', 'raw', '-O', 'raw', path('source'), uri()])
    const identical = (format: string, other: string) =>
      must('qemu-img', ['compare', '-f', 'raw', '-F', format, path('source'), other])
    expect(identical('raw', uri())).toBe('Images are identical.\n')
    must('qemu-img', ['convert', '-f', 'raw', '-O', 'qcow2', uri(), path('image.qcow2')])
    expect(identical('qcow2', path('image.qcow2'))).toBe('Images are identical.\n')
  })

  it('qemu-io with each of its flags', () => {
    const commands = [
      'write -f -P 0x11 8M 64k',
      'write -z -u 8M 4k',
      'write -z 8196k 4k',
      'write -z -n -u 8200k 4k',
      'read -P 0 8M 12k',
      'read -P 0x11 8204k 52k',
      'discard 8M 64k',
      'read -P 0 8M 64k',
      'map',
    ]
    const out = must('qemu-io', ['-f', 'raw', ...commands.flatMap((each) => ['-c', each]), uri()])
    expect(out).not.toMatch(/fail|error/i)
  })
})

describe('FUSE', () => {
  it('nbdfuse and badblocks -w find no bad block', async () => {
    // The lab guest mounts the real kernel device; here the host must be able to mount FUSE.
    if (!existsSync('/dev/fuse')) {
      expect(process.env.CI, 'CI needs /dev/fuse').toBeUndefined()
      console.warn('SKIPPED: /dev/fuse is missing')
      return
    }
    mkdirSync(path('mount'))
    const disk = path('mount/disk')
    const fuse = spawn('nbdfuse', ['--pidfile', path('fuse.pid'), disk, uri('fuse')], { stdio: 'inherit' })
    const ended = new Promise<void>((resolve) => fuse.once('close', () => resolve()))
    try {
      // nbdfuse writes its pid file when the mount is up.
      await until(
        () => existsSync(path('fuse.pid')) && readFileSync(path('fuse.pid'), 'utf8'),
        (pid) => pid !== false && pid !== '',
      )
      expect(must('badblocks', ['-w', '-s', '-b', '4096', '-c', '256', disk, '8192'])).toBe('')
    } finally {
      run('umount', [path('mount')])
      await ended
    }
  })
})
