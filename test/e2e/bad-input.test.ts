// What is wrong is said in one line on stderr, with what to do, and the exit status is the one of the READMEs' tables.
import { once } from 'node:events'
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { NBD_CLIENT, Program, run, SWAP_SERVER, startServer, temporaryFolder } from './processes.js'

const folder = temporaryFolder()
let server: Program
let uri: string

beforeAll(async () => {
  const started = await startServer(['--memory', '64M', '--slab-size', '16M'])
  server = started.program
  uri = started.uri
})

afterAll(async () => {
  await server?.stop()
  folder[Symbol.dispose]()
})

const node = (script: string, ...args: string[]) => run(process.execPath, [script, ...args])
/** With one connection: each takes memory. */
const serve = (...args: string[]) =>
  node(NBD_CLIENT, 'serve', '--unix', join(folder.path, 'bad.sock'), '--connections', '1', ...args)

function expectOneLine(
  expected: number,
  { status, stderr }: { status: number | null; stderr: string },
  pattern: RegExp,
) {
  expect(stderr).toMatch(pattern)
  // What was done before the failure is told on lines of its own; the failure is one line, the last.
  expect(stderr.trimEnd().split('\n').at(-1)).toMatch(pattern)
  expect(status).toBe(expected)
}

describe('nbd-client', () => {
  it('unknown URI scheme', () => {
    expectOneLine(
      64,
      serve('--server', 'tcp://127.0.0.1:1', '--size', '16M'),
      /unknown URI scheme "tcp:\/\/".*known: rdma:\/\/, iwarp:\/\//,
    )
  })

  it.each(['abc', '-5', '0', '1X', ''])('size %j is not a size', (size) => {
    expectOneLine(64, serve('--server', uri, `--size=${size}`), /--size/)
  })

  it('size that is not a multiple of 4096', () => {
    expectOneLine(64, serve('--server', uri, '--size', '1000000'), /not a multiple of 4096.*1003520/)
  })

  it('server unreachable', () => {
    expectOneLine(69, serve('--server', 'iwarp://127.0.0.1:1', '--size', '16M'), /nobody listens there/)
  })

  it('unknown host', () => {
    expectOneLine(69, serve('--server', 'iwarp://no.such.host.invalid:1', '--size', '16M'), /unknown host/)
  })

  it('server too small', () => {
    expectOneLine(69, serve('--server', uri, '--size', '128M'), /server too small.*64 MiB.*128 MiB.*--memory/)
  })

  it('compression that is none, or without what it needs', async () => {
    const size = ['--server', uri, '--size', '16M']
    expectOneLine(64, serve(...size, '--compress', 'zip'), /--compress.*none, lz4, lz4-always/)
    expectOneLine(64, serve(...size, '--compress', 'lz4', '--no-checksum'), /--compress needs checksums/)
    const state = join(folder.path, 'state')
    expectOneLine(64, serve(...size, '--compress', 'lz4', '--state', state), /no --compress with --state/)
    // No library, for the loader.
    writeFileSync(join(folder.path, 'liblz4.so.1'), '')
    const socket = join(folder.path, 'bad.sock')
    await using program = new Program(NBD_CLIENT, ['serve', '--unix', socket, ...size, '--compress', 'lz4'], {
      LD_LIBRARY_PATH: folder.path,
    })
    expectOneLine(
      71,
      { ...(await program.ends()), stderr: program.stderr },
      /needs liblz4.*apt install liblz4-1/,
    )
  })

  it('no RDMA device for rdma://', () => {
    expectOneLine(71, serve('--server', 'rdma://127.0.0.1:1', '--size', '16M'), /RDMA device.*iwarp:\/\//)
  })

  it('no nbd module', () => {
    expectOneLine(
      71,
      node(NBD_CLIENT, 'attach', '--server', uri, '--size', '16M'),
      /nbd module.*nbd-client serve/,
    )
  })

  it('not root', () => {
    expectOneLine(
      77,
      run('setpriv', [
        '--reuid=65534',
        '--regid=65534',
        '--clear-groups',
        process.execPath,
        NBD_CLIENT,
        'attach',
        '--server',
        uri,
        '--size',
        '16M',
      ]),
      /must be run as root.*nbd-client serve/,
    )
  })

  it('a device that is none', () => {
    expectOneLine(
      64,
      node(NBD_CLIENT, 'attach', '--server', uri, '--size', '16M', '--device', '/dev/sda'),
      /"\/dev\/sda" is no device of ours; write \/dev\/nbd0, or \/dev\/ublkb0/,
    )
  })

  it('a device of the other driver', () => {
    expectOneLine(
      64,
      node(NBD_CLIENT, 'attach', '--server', uri, '--size', '16M', '--device', '/dev/ublkb0'),
      /\/dev\/ublkb0 is not a device of --front nbd/,
    )
  })

  it('a driver that is none', () => {
    expectOneLine(
      64,
      node(NBD_CLIENT, 'attach', '--server', uri, '--size', '16M', '--front', 'loop'),
      /--front.*Allowed choices are nbd, ublk/,
    )
  })

  it.each(['/dev/nbd0', '/dev/ublkb0'])('detaching %s, which is not attached', (device) => {
    expectOneLine(1, node(NBD_CLIENT, 'detach', device), /not attached/)
  })

  it('neither socket nor address', () => {
    expectOneLine(64, node(NBD_CLIENT, 'serve', '--server', uri, '--size', '16M'), /--unix.*--tcp/)
  })

  it('a socket path that a file has', () => {
    expectOneLine(
      73,
      node(NBD_CLIENT, 'serve', '--server', uri, '--size', '16M', '--connections', '1', '--unix', NBD_CLIENT),
      /not a socket/i,
    )
  })

  it.each([
    [['--export', 'a,size=5000'], /--export "a": size "5000".*8192/],
    [['--export', 'a,color=red'], /"color=red" is not one of offset/],
    [['--export', 'a', '--export', 'a'], /--export "a" is given twice/],
    [['--export', 'a,offset=8M,size=16M'], /reaches beyond the end/],
    [['--export', 'a', '--read-only'], /with --export/],
    [['--minimum-block', '3'], /power of two/],
    [['--minimum-block', '8192'], /from 1 to 4096/],
  ])('exports that cannot be: %j', (args, pattern) => {
    expectOneLine(64, serve('--server', uri, '--size', '16M', ...args), pattern)
  })

  it('metrics at an address that is taken', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    try {
      await once(taken, 'listening')
      const { port } = taken.address() as AddressInfo
      expectOneLine(73, serve('--server', uri, '--size', '16M', '--metrics', `${port}`), /EADDRINUSE/)
    } finally {
      taken.close()
    }
  })

  it('an address that this machine does not have', () => {
    expectOneLine(
      71,
      node(
        NBD_CLIENT,
        'serve',
        '--server',
        uri,
        '--size',
        '16M',
        '--connections',
        '1',
        '--tcp',
        '192.0.2.1:10809',
      ),
      /192\.0\.2\.1/,
    )
  })

  it('a key file that is not there', () => {
    expectOneLine(
      78,
      serve('--server', uri, '--size', '16M', '--key-file', '/nonexistent/key'),
      /key file \/nonexistent\/key cannot be read/,
    )
  })

  it('a state folder that others may look into', () => {
    const state = join(folder.path, 'state')
    mkdirSync(state)
    chmodSync(state, 0o755)
    expectOneLine(
      78,
      node(NBD_CLIENT, 'attach', '--server', uri, '--size', '16M', '--state', state),
      /must be yours with mode 0700; run chmod 700/,
    )
  })

  it('swap that keeps state, and answers that its process may take with it', () => {
    expectOneLine(
      64,
      node(NBD_CLIENT, 'attach', '--server', uri, '--size', '16M', '--swap', '--ack', 'one'),
      /--swap keeps state.*add --no-state/,
    )
  })

  it('ends with 0 when it is stopped before it is ready', async () => {
    // It listens and never answers.
    const silent = createServer().listen(0, '127.0.0.1')
    try {
      await once(silent, 'listening')
      const { port } = silent.address() as AddressInfo
      await using client = new Program(NBD_CLIENT, [
        ...['serve', '--server', `iwarp://127.0.0.1:${port}`, '--size', '16M'],
        ...['--unix', join(folder.path, 'early.sock')],
      ])
      await once(silent, 'connection')
      expect(await client.stop()).toMatchObject({ status: 0, signal: null })
    } finally {
      silent.close()
    }
  })

  it('an unknown option', () => {
    expectOneLine(64, serve('--server', uri, '--size', '16M', '--nonsense'), /unknown option '--nonsense'/)
  })
})

describe('swap-server', () => {
  it('unknown URI scheme', () => {
    expectOneLine(64, node(SWAP_SERVER, '--listen', 'udp://x:1', '--memory', '64M'), /unknown URI scheme/)
  })

  it('memory below one slab', () => {
    expectOneLine(
      64,
      node(SWAP_SERVER, '--listen', 'iwarp://127.0.0.1:0', '--memory', '1M'),
      /does not hold one slab/,
    )
  })

  it('a slab size that is not a power of two', () => {
    expectOneLine(
      64,
      node(SWAP_SERVER, '--listen', 'iwarp://127.0.0.1:0', '--memory', '64M', '--slab-size', '3M'),
      /power of two/,
    )
  })

  it('an address in use', () => {
    expectOneLine(73, node(SWAP_SERVER, '--listen', uri, '--memory', '64M'), /EADDRINUSE/)
  })

  it('no RDMA device for rdma://', () => {
    expectOneLine(71, node(SWAP_SERVER, '--listen', 'rdma://127.0.0.1:0', '--memory', '64M'), /RDMA device/)
  })

  it('no --memory', () => {
    expectOneLine(64, node(SWAP_SERVER, '--listen', 'iwarp://127.0.0.1:0'), /--memory/)
  })
})
