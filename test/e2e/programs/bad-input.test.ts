// What is wrong on a command line is said in one line on stderr that names the option or argument, with the exit status of
// the READMEs' tables, before anything is allocated and with nothing left behind. Each row runs the real program; five at
// a time, since a start is most of what one takes: 0.2 s of processor a row, 25 s in all on two cores.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  endWithProcess,
  NBD_CLIENT,
  Program,
  run,
  SWAP_SERVER,
  startServer,
  temporaryFolder,
  writeTenants,
} from '../helpers/processes.js'

const FAILED = 1
const USAGE = 64
const UNAVAILABLE = 69
const SYSTEM = 71
const TAKEN = 73
const FORBIDDEN = 77
const FILE = 78

/** What is given, on one line with blanks between words; `{name}` is one of {@link given}. */
type Row = readonly [
  words: string,
  status: number,
  /** what the line has besides the name of the option or argument */
  says: RegExp,
  /** the option or argument; default: the last one that is given */
  names?: string,
]

const folder = temporaryFolder()
const ends: (() => unknown)[] = []
/** What the rows refer to, made before they run. */
const given: Record<string, string> = {}
/** files in {@link folder} before the rows run */
let made: readonly string[] = []

/** A service that is not ours. @returns its port */
async function strangeService(greeting: string): Promise<string> {
  const server: Server = createServer((socket) => socket.on('error', () => {}).end(greeting))
  ends.push(() => server.close())
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return String((server.address() as AddressInfo).port)
}

function file(name: string, text: string, mode = 0o600): string {
  const path = join(folder.path, name)
  writeFileSync(path, text)
  chmodSync(path, mode)
  return path
}

const secret = 'ab'.repeat(32)

beforeAll(async () => {
  const servers = temporaryFolder()
  ends.push(() => servers[Symbol.dispose]())
  given.audit = join(servers.path, 'audit.jsonl')
  const memory = ['--memory', '64M', '--slab-size', '16M', '--audit-log', given.audit]
  const open = await startServer(memory, undefined, servers.path)
  const tenants = writeTenants(
    servers.path,
    { name: 'small', quota: '16M', keys: [{ id: 'k', secret }] },
    { name: 'large', keys: [{ id: 'k2', secret }] },
  )
  const closed = await startServer([...memory, '--tenants', tenants], undefined, servers.path)
  for (const { program } of [open, closed]) ends.unshift(() => program.stop())
  Object.assign(given, {
    open: open.uri,
    closed: closed.uri,
    ssh: `iwarp://127.0.0.1:${await strangeService('SSH-2.0-OpenSSH_9.2\r\n')}`,
    port: await strangeService(''),
    folder: folder.path,
    sock: join(folder.path, 'nbd.sock'),
    file: file('a-file', 'this is not it\n'),
    long: join(folder.path, 'x'.repeat(100)),
    key: file('small.key', `k:${secret}\n`),
    wrongKey: file('wrong.key', `k:${'cd'.repeat(32)}\n`),
    openKey: file('open.key', `k:${secret}\n`, 0o644),
    noKey: file('no.key', 'nothing of the kind\n'),
    shortKey: file('short.key', 'k:abcd\n'),
    broken: file('broken.json', '{\n  "tenants": [\n    { "name": "a", }\n  ]\n}\n'),
    cut: file('cut.json', '{ "tenants": ['),
    field: file('field.json', '{ "tenants": [{ "name": "a", "qouta": "1G" }] }'),
    loose: file('loose.json', '{ "tenants": [{ "name": "a" }] }', 0o666),
    certificates: join(folder.path, 'certificates'),
    exposed: join(folder.path, 'exposed'),
  })
  mkdirSync(given.certificates as string, { mode: 0o700 })
  for (const name of ['server-cert.pem', 'server-key.pem'])
    file(join('certificates', name), 'no certificate\n')
  mkdirSync(given.exposed as string)
  chmodSync(given.exposed as string, 0o755)
  made = readdirSync(folder.path).toSorted()
})

afterAll(async () => {
  for (const end of ends) await end()
  folder[Symbol.dispose]()
})

const LEND = '--listen iwarp://127.0.0.1:0 --memory 64M'

const SWAP_SERVER_ROWS: readonly Row[] = [
  ['--memory 64M', USAGE, /required option/, '--listen'],
  ['', USAGE, /required option/, '--listen'],
  ['--listen iwarp://127.0.0.1:0', USAGE, /required option/, '--memory'],
  ['statsu', USAGE, /unknown command 'statsu'; did you mean status\?/],
  ['srve --memory 64M', USAGE, /did you mean serve\?/, 'srve'],
  ['xyzzy', USAGE, /unknown command 'xyzzy'; see "swap-server --help"/],
  ['help statsu', USAGE, /did you mean status\?/, 'statsu'],
  [`serve ${LEND} more`, USAGE, /unexpected argument 'more'/],
  [`${LEND} --nonsense`, USAGE, /unknown option/],
  [`${LEND} --memroy 1G`, USAGE, /unknown option .*did you mean --memory\?/, '--memroy'],
  ['--listen iwarp://127.0.0.1:0 --memory', USAGE, /argument missing/],
  ['--listen udp://x:1 --memory 64M', USAGE, /unknown URI scheme "udp:\/\/".*known: rdma:\/\//, '--listen'],
  ['--listen iwarp://127.0.0.1:99999 --memory 64M', USAGE, /port 99999 .* above 65535/, '--listen'],
  ['--listen 127.0.0.1:7471 --memory 64M', USAGE, /is not an address; write rdma:\/\/host:port/, '--listen'],
  ['--listen shm://relative.sock --memory 64M', USAGE, /write shm:\/\/\/path/, '--listen'],
  [
    '--listen shm:///no/such/dir/a.sock --memory 64M',
    USAGE,
    /folder \/no\/such\/dir does not exist/,
    '--listen',
  ],
  ['--listen shm://{file} --memory 64M', TAKEN, /what is there is not a socket/, '--listen'],
  ['--listen shm:///proc/a.sock --memory 64M', USAGE, /no such file/, '--listen'],
  ['--listen {open} --memory 64M', TAKEN, /EADDRINUSE/, '--listen'],
  ['--listen iwarp://192.0.2.1:0 --memory 64M', SYSTEM, /EADDRNOTAVAIL/, '--listen'],
  ['--listen iwarp://no.such.host.invalid:0 --memory 64M', UNAVAILABLE, /unknown host/, '--listen'],
  ['--listen rdma://127.0.0.1:0 --memory 64M', SYSTEM, /RDMA device/, '--listen'],
  [`${LEND}x`, USAGE, /"64Mx" is not a size; write bytes or a number with K, M, G or T/, '--memory'],
  [`${LEND} --memory 1M`, USAGE, /does not hold one slab/, '--memory'],
  [`${LEND} --memory 0`, USAGE, /must be above 0/, '--memory'],
  [`${LEND} --memory 100T`, USAGE, /more than the .* that this machine.* add --overcommit/, '--memory'],
  [`${LEND} --memory 9999999T`, USAGE, /below 8 PiB/, '--memory'],
  [`${LEND} --slab-size 3M`, USAGE, /power of two/, '--slab-size'],
  [`${LEND} --slab-size 8T`, USAGE, /from 1M to 4G/, '--slab-size'],
  [`${LEND} --headroom 99%`, USAGE, /leaves nothing to lend/, '--headroom'],
  [`${LEND} --headroom much`, USAGE, /is not a size/, '--headroom'],
  [`${LEND} --bandwidth fast`, USAGE, /is not a size/, '--bandwidth'],
  [`${LEND} --session-timeout 0`, USAGE, /seconds from 1 to 86400/, '--session-timeout'],
  [`${LEND} --session-timeout 1e9`, USAGE, /seconds from 1 to 86400/, '--session-timeout'],
  [`${LEND} --max-linger -1`, USAGE, /seconds from 0 to 86400/, '--max-linger'],
  [`${LEND} --drain soon`, USAGE, /whole number from 0 to 86400/, '--drain'],
  [`${LEND} --log-level loud`, USAGE, /trace, debug, info, warn, error, silent/, '--log-level'],
  [`${LEND} --metrics nowhere`, USAGE, /is not host:port/, '--metrics'],
  [`${LEND} --metrics 99999`, USAGE, /is not host:port/, '--metrics'],
  [`${LEND} --metrics {port}`, TAKEN, /EADDRINUSE/, '--metrics'],
  [`${LEND} --metrics 192.0.2.1:0`, SYSTEM, /EADDRNOTAVAIL/, '--metrics'],
  [`${LEND} --tenants /no/such/file`, FILE, /there is no such file/, '--tenants'],
  [`${LEND} --tenants {folder}`, FILE, /is not a file/, '--tenants'],
  [`${LEND} --tenants {broken}`, FILE, /not JSON; the mistake is in line 3, column \d+/, '--tenants'],
  [`${LEND} --tenants {cut}`, FILE, /not JSON; the mistake is in line 1, column 15/, '--tenants'],
  [`${LEND} --tenants {field}`, FILE, /a field "qouta" that is not one of name/, '--tenants'],
  [`${LEND} --tenants {loose}`, FILE, /can be written by others; "chmod 600/, '--tenants'],
  [`${LEND} --audit-log /no/such/dir/a`, USAGE, /folder \/no\/such\/dir does not exist/, '--audit-log'],
  [`${LEND} --audit-log {folder}`, FILE, /it is a folder/, '--audit-log'],
  ['status udp://x:1', USAGE, /unknown URI scheme/, 'uri'],
  ['status iwarp://127.0.0.1:1', UNAVAILABLE, /nobody listens there/, 'iwarp://127.0.0.1:1'],
  ['status {ssh}', UNAVAILABLE, /is not a swap-server.*another service/, 'iwarp://127.0.0.1'],
  ['status {open} --key-file /no/such/key', FILE, /there is no such file/, '--key-file'],
  ['status {open} --tenant nobody', FORBIDDEN, /no such tenant/, 'iwarp://127.0.0.1'],
  ['status --watch 0', USAGE, /seconds from 0\.1 to 3600/, '--watch'],
  ['reclaim', USAGE, /missing required argument/, 'size'],
  ['reclaim much', USAGE, /"much" is not a size/, '<size>'],
  ['reclaim 1M', UNAVAILABLE, /no swap-server is running/, 'swap-server'],
  ['reclaim 1M --pid 1', UNAVAILABLE, /no swap-server has this process id/, '--pid'],
  ['reclaim 1M --pid all', USAGE, /whole number/, '--pid'],
  ['reclaim 1M --hold -5', USAGE, /whole number from 0/, '--hold'],
  ['stop --pid 1', UNAVAILABLE, /no swap-server has this process id/, '--pid'],
  ['stop --wait long', USAGE, /whole number from 0/, '--wait'],
  ['stop now', USAGE, /unexpected argument 'now'/],
]

const VOLUME = 'serve --unix {sock} --connections 1 --server {open} --size 16M'
const ELSEWHERE = 'serve --connections 1 --server {open} --size 16M'

const NBD_CLIENT_ROWS: readonly Row[] = [
  ['', USAGE, /give a command: serve, attach, detach, upgrade, status or help/, 'command'],
  ['srve', USAGE, /did you mean serve\?/],
  ['--nope', USAGE, /unknown option/],
  ['help srve', USAGE, /did you mean serve\?/, 'srve'],
  ['serve --unix {sock} --size 16M', USAGE, /required option/, '--server'],
  ['serve --unix {sock} --server {open}', USAGE, /required option/, '--size'],
  ['serve --unix {sock} --server tcp://a:1 --size 16M', USAGE, /unknown URI scheme "tcp:\/\/"/, '--server'],
  ['serve --unix {sock} --server , --size 16M', USAGE, /is not an address/, '--server'],
  ['serve --unix {sock} --server iwarp://127.0.0.1:1 --size 16M', UNAVAILABLE, /nobody listens/, '--server'],
  [
    'serve --unix {sock} --server iwarp://no.such.host.invalid:1 --size 16M',
    UNAVAILABLE,
    /unknown host/,
    '--server',
  ],
  [
    'serve --unix {sock} --server rdma://127.0.0.1:1 --size 16M',
    SYSTEM,
    /RDMA device.*iwarp:\/\//,
    '--server',
  ],
  ['serve --unix {sock} --server shm://{folder}/none --size 16M', UNAVAILABLE, /nobody listens/, '--server'],
  [
    'serve --unix {sock} --server {ssh} --size 16M',
    UNAVAILABLE,
    /is not a swap-server.*another service/,
    '--server',
  ],
  [`${VOLUME} --server {open}`, USAGE, /lead to the same server/, '--server'],
  [`${VOLUME} --size=abc`, USAGE, /is not a size/, '--size'],
  [`${VOLUME} --size=-5`, USAGE, /is not a size/, '--size'],
  [`${VOLUME} --size=0`, USAGE, /must be above 0/, '--size'],
  [`${VOLUME} --size=1X`, USAGE, /is not a size/, '--size'],
  [`${VOLUME} --size=`, USAGE, /is not a size/, '--size'],
  [`${VOLUME} --size 1000000`, USAGE, /not a multiple of 4096.*1003520/, '--size'],
  [`${VOLUME} --size 128M`, UNAVAILABLE, /64 MiB.*128 MiB.*--memory/, '--size'],
  [`${VOLUME} --connections 0`, USAGE, /from 1 to 64/, '--connections'],
  [`${VOLUME} --timeout never`, USAGE, /from 1 to 600/, '--timeout'],
  [`${VOLUME} --replicas 4`, USAGE, /from 1 to 3/, '--replicas'],
  [`${VOLUME} --replicas 2`, USAGE, /need 2 servers and there are 1/, '--replicas'],
  [`${VOLUME} --ack some`, USAGE, /all, one, backup/, '--ack'],
  [`${VOLUME} --ack backup`, USAGE, /need --backup/, '--ack'],
  [`${VOLUME} --refill-rate fast`, USAGE, /is not a size/, '--refill-rate'],
  [`${VOLUME} --read-ahead 2M`, USAGE, /more than 1M/, '--read-ahead'],
  [`${VOLUME} --read-ahead 5K`, USAGE, /not a multiple of 65536/, '--read-ahead'],
  [`${VOLUME} --key-file /no/such/key`, FILE, /there is no such file/, '--key-file'],
  [`${VOLUME} --key-file {openKey}`, FILE, /not safe.*chmod 600/, '--key-file'],
  [`${VOLUME} --key-file {noKey}`, FILE, /not one line "id:secret"/, '--key-file'],
  [`${VOLUME} --key-file {shortKey}`, FILE, /3 bytes instead of 16/, '--key-file'],
  [`${VOLUME} --tenant nobody`, FORBIDDEN, /no such tenant/, '--server'],
  ['serve --unix {sock} --server {closed} --size 16M', FORBIDDEN, /no such tenant|key/, '--server'],
  [
    'serve --unix {sock} --server {closed} --size 16M --tenant small --key-file {wrongKey}',
    FORBIDDEN,
    /key/,
    '--server',
  ],
  [
    'serve --unix {sock} --server {closed} --size 32M --tenant small --key-file {key}',
    UNAVAILABLE,
    /tenant "small" may have 16 MiB of .*, of which 0 bytes are used;.* 32 MiB;.*"quota" in its --tenants file/,
    '--size',
  ],
  [`${VOLUME} --linger 0`, USAGE, /from 1 to 86400/, '--linger'],
  [`${VOLUME} --reconnect -1`, USAGE, /from 0 to 3600/, '--reconnect'],
  [`${VOLUME} --state {file}`, TAKEN, /must be a folder/, '--state'],
  [`${VOLUME} --state {file}/state`, TAKEN, /must be a folder/, '--state'],
  [`${VOLUME} --state /proc/nope`, USAGE, /cannot be made/, '--state'],
  [`${VOLUME} --state {exposed}`, FILE, /mode 0700; run chmod 700/, '--state'],
  [`${VOLUME} --state {folder}/s --ack one`, USAGE, /needs --ack all/, '--state'],
  [`${VOLUME} --backup /no/such/dir/b`, USAGE, /folder \/no\/such\/dir does not exist/, '--backup'],
  [`${VOLUME} --backup {folder}`, USAGE, /neither a regular file nor a block device/, '--backup'],
  [`${VOLUME} --backup /proc/nope`, USAGE, /No such file/, '--backup'],
  [`${VOLUME} --backup-queue 1M`, USAGE, /need --backup/, '--backup-queue'],
  [`${VOLUME} --thin --backup {folder}/b`, USAGE, /do not go together/, '--thin'],
  [`${VOLUME} --metrics {port}`, TAKEN, /EADDRINUSE/, '--metrics'],
  [`${VOLUME} --metrics here`, USAGE, /is not host:port/, '--metrics'],
  [ELSEWHERE, USAGE, /give one of/, '--unix'],
  [`${VOLUME} --tcp 127.0.0.1:0`, USAGE, /give one of/, '--tcp'],
  [`${ELSEWHERE} --unix /no/such/dir/x`, USAGE, /folder \/no\/such\/dir does not exist/, '--unix'],
  [`${ELSEWHERE} --unix {file}`, TAKEN, /not a socket/, '--unix'],
  [`${ELSEWHERE} --unix {file}/x`, USAGE, /is not a folder/, '--unix'],
  [`${ELSEWHERE} --unix {long}`, USAGE, /has \d+ bytes.* 1 to 107/, '--unix'],
  [`${ELSEWHERE} --tcp 10809`, USAGE, /is not host:port/, '--tcp'],
  [`${ELSEWHERE} --tcp 192.0.2.1:10809`, SYSTEM, /192\.0\.2\.1/, '--tcp'],
  [`${ELSEWHERE} --tcp 127.0.0.1:{port}`, TAKEN, /in use/, '--tcp'],
  [`${VOLUME} --export a,size=5000`, USAGE, /size "5000".*8192/, '--export'],
  [`${VOLUME} --export a,color=red`, USAGE, /"color=red" is not one of offset/, '--export'],
  [`${VOLUME} --export a --export a`, USAGE, /is given twice/, '--export'],
  [`${VOLUME} --export a,offset=8M,size=16M`, USAGE, /reaches beyond the end/, '--export'],
  [`${VOLUME} --export a --read-only`, USAGE, /with --export/, '--read-only'],
  [`${VOLUME} --minimum-block 3`, USAGE, /power of two/, '--minimum-block'],
  [`${VOLUME} --minimum-block 8192`, USAGE, /from 1 to 4096/, '--minimum-block'],
  [`${VOLUME} --tls maybe`, USAGE, /off, on, require/, '--tls'],
  [`${VOLUME} --tls on`, USAGE, /needs one of --tls-certificates and --tls-psk/, '--tls'],
  [`${VOLUME} --tls-psk {key}`, USAGE, /need --tls=on/, '--tls-psk'],
  [`${VOLUME} --tls on --tls-psk /no/such/psk`, FILE, /no such file/, '--tls-psk'],
  [`${VOLUME} --tls on --tls-psk {openKey}`, FILE, /open to others.*chmod 600/, '--tls-psk'],
  [
    `${VOLUME} --tls on --tls-certificates {folder}`,
    FILE,
    /server-cert\.pem: there is no such file/,
    '--tls-certificates',
  ],
  [`${VOLUME} --tls on --tls-certificates {certificates}`, FILE, /server-cert\.pem/, '--tls-certificates'],
  [
    `${VOLUME} --tls on --tls-psk {key} --tls-verify-peer`,
    USAGE,
    /needs --tls-certificates/,
    '--tls-verify-peer',
  ],
  ['attach --size 16M', USAGE, /required option/, '--server'],
  ['attach --server {open} --size 16M', SYSTEM, /nbd module.*nbd-client serve/, '--front'],
  [
    'attach --server {open} --size 16M --device /dev/sda',
    USAGE,
    /"\/dev\/sda" is no device of ours; write/,
    '/dev/sda',
  ],
  ['attach --server {open} --size 16M --device /dev/ublkb0', USAGE, /not a device of --front nbd/, '--front'],
  ['attach --server {open} --size 16M --front loop', USAGE, /nbd, ublk/, '--front'],
  ['attach --server {open} --size 16M --state {exposed}', FILE, /mode 0700; run chmod 700/, '--state'],
  ['attach --server {open} --size 16M --swap-priority 40000', USAGE, /from 0 to 32767/, '--swap-priority'],
  ['detach', USAGE, /missing required argument/, 'device'],
  ['detach /dev/sda', USAGE, /no device of ours/, '/dev/sda'],
  ['detach /dev/nbd0', FAILED, /not attached/, '/dev/nbd0'],
  ['detach /dev/ublkb0', FAILED, /not attached/, '/dev/ublkb0'],
  ['detach /dev/nbd0 --timeout 0', USAGE, /from 1 to 86400/, '--timeout'],
  ['upgrade /dev/nbd0 --pid 3', USAGE, /not both/, '--pid'],
  ['upgrade --pid x', USAGE, /whole number/, '--pid'],
  ['status --watch x', USAGE, /seconds from/, '--watch'],
  ['status here', USAGE, /unexpected argument 'here'/],
]

/** Of a run on its way, not of its failure. */
const PROGRESS = /^nbd-client: connecting to /

const fill = (text: string) => text.replaceAll(/\{(\w+)\}/g, (_, name: string) => given[name] ?? `{${name}}`)

async function refused(program: string, [words, status, says, names]: Row, env: NodeJS.ProcessEnv = {}) {
  using run = temporaryFolder()
  const args = words === '' ? [] : words.split(' ').map(fill)
  await using running = new Program(program, args, { RDMAKIT_RUN: run.path, ...env })
  const ended = await running.ends()
  const lines = running.stderr.split('\n').filter((line) => line !== '' && !PROGRESS.test(line))
  expect(lines, running.stdout).toHaveLength(1)
  expect(lines[0]).toMatch(says)
  expect(lines[0]).toContain(fill(names ?? (words.split(' ').at(-1) as string)))
  expect(ended, lines[0]).toEqual({ status, signal: null })
  expect(running.stdout).toBe('')
  expect(readdirSync(run.path)).toEqual([])
}

const titled = (rows: readonly Row[]) => rows.map((row) => [row[0], row] as const)

describe.concurrent('swap-server', () => {
  it.each(titled(SWAP_SERVER_ROWS))('%s', (_, row) => refused(SWAP_SERVER, row))
})

describe.concurrent('nbd-client', () => {
  it.each(titled(NBD_CLIENT_ROWS))('%s', (_, row) => refused(NBD_CLIENT, row))
})

describe('all of these', () => {
  it('have allocated nothing, and have left nothing behind', async () => {
    const events = readFileSync(given.audit as string, 'utf8')
    expect(events).toContain('session-opened')
    expect(events).not.toContain('slabs-allocated')
    expect(readdirSync(folder.path).toSorted()).toEqual(made)
  })
})

describe('what needs more than a command line', () => {
  /** As nobody, who may make nothing beside what is ours. */
  const asNobody = (program: string, words: string, env: readonly string[] = []) =>
    run('setpriv', [
      ...['--reuid=65534', '--regid=65534', '--clear-groups', 'env', ...env],
      ...[process.execPath, program, ...words.split(' ').map(fill)],
    ])

  it('not root', () => {
    const { status, stderr } = asNobody(NBD_CLIENT, 'attach --server {open} --size 16M')
    expect(stderr).toMatch(/must be run as root.*nbd-client serve/)
    expect(status).toBe(FORBIDDEN)
  })

  it('a run folder in which nothing can be made', async () => {
    using ours = temporaryFolder()
    chmodSync(ours.path, 0o755)
    const env = ['-u', 'RDMAKIT_RUN', `XDG_RUNTIME_DIR=${ours.path}`]
    const { status, stderr } = asNobody(NBD_CLIENT, `${ELSEWHERE} --tcp 127.0.0.1:0`, env)
    expect(stderr).toMatch(
      /^nbd-client: the folder for control sockets \(RDMAKIT_RUN\) .*permission denied.*\n$/,
    )
    expect(status).toBe(FORBIDDEN)
  })

  it('a run folder that was named and is none, whoever wants to serve', async () => {
    for (const [program, words] of [
      [SWAP_SERVER, LEND],
      [NBD_CLIENT, VOLUME],
    ] as const) {
      await using running = new Program(program, words.split(' ').map(fill), { RDMAKIT_RUN: '/proc/nope' })
      expect(await running.ends()).toEqual({ status: USAGE, signal: null })
      expect(running.stderr).toMatch(/^[a-z-]+: .*RDMAKIT_RUN.* cannot be made: .*\n$/)
    }
  })

  it('a server that may make no control socket lends all the same, and says in a line what lacks', async () => {
    using ours = temporaryFolder()
    chmodSync(ours.path, 0o755)
    const { RDMAKIT_RUN: _, ...env } = { ...process.env, XDG_RUNTIME_DIR: ours.path }
    const server = endWithProcess(
      spawn(process.execPath, [SWAP_SERVER, ...LEND.split(' '), '--audit-log', '/dev/null'], {
        uid: 65534,
        gid: 65534,
        env,
      }),
    )
    const ended = once(server, 'exit')
    const [text] = await once(server.stderr, 'data')
    const told = JSON.parse(String(text))
    await once(server.stdout, 'data')
    server.kill()
    expect(await ended).toEqual([0, null])
    expect(told.msg).toMatch(
      /^no control socket, so "status", "stop" and "reclaim" do not find this server: /,
    )
    expect(told).not.toHaveProperty('err')
  })

  it('swap that keeps state, and answers that its process may take with it', () =>
    refused(NBD_CLIENT, [
      'attach --server {open} --size 16M --swap --ack one',
      USAGE,
      /keeps state.*add --no-state/,
      '--swap',
    ]))

  it('compression that is none, or without what it needs', async () => {
    const rows: readonly Row[] = [
      [`${VOLUME} --compress zip`, USAGE, /none, lz4, lz4-always/, '--compress'],
      [`${VOLUME} --compress lz4 --no-checksum`, USAGE, /needs checksums/, '--compress'],
      [`${VOLUME} --compress lz4 --state {folder}/s`, USAGE, /no --compress with --state/, '--compress'],
    ]
    for (const row of rows) await refused(NBD_CLIENT, row)
    using ours = temporaryFolder()
    // No library, for the loader.
    writeFileSync(join(ours.path, 'liblz4.so.1'), '')
    await refused(
      NBD_CLIENT,
      [`${VOLUME} --compress lz4`, SYSTEM, /needs liblz4.*apt install liblz4-1/, '--compress'],
      { LD_LIBRARY_PATH: ours.path },
    )
  })

  it('a control socket that is open, and more than a server has lent', async () => {
    using ours = temporaryFolder()
    const { program } = await startServer(['--memory', '64M'], undefined, ours.path)
    await using _ = program
    const reclaim = new Program(SWAP_SERVER, ['reclaim', '100T'], { RDMAKIT_RUN: ours.path })
    expect(await reclaim.ends()).toEqual({ status: UNAVAILABLE, signal: null })
    expect(reclaim.stderr).toMatch(
      /<size> 100 TiB is more than swap-server \d+ has lent; it has lent nothing\n$/,
    )
  })

  it('an end that is wanted before it is ready is none that failed', async () => {
    // It listens and never answers.
    const silent = createServer().listen(0, '127.0.0.1')
    try {
      await once(silent, 'listening')
      const { port } = silent.address() as AddressInfo
      using ours = temporaryFolder()
      await using client = new Program(
        NBD_CLIENT,
        [
          ...['serve', '--server', `iwarp://127.0.0.1:${port}`, '--size', '16M'],
          ...['--unix', join(ours.path, 'early.sock')],
        ],
        { RDMAKIT_RUN: ours.path },
      )
      await once(silent, 'connection')
      expect(await client.stop()).toMatchObject({ status: 0, signal: null })
    } finally {
      silent.close()
    }
  })
})
