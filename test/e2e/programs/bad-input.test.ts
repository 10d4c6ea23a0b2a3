// A mistake on a command line is reported in one line on stderr that names the option or argument, with the
// exit status of the READMEs' tables, before anything is allocated, and nothing is left behind. The rows of a program run in
// one process, and one of each exit status in one of its own too. 10 s of processor time.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer as createWebServer } from 'node:http'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { top } from '../../lab/base/paths.js'
import { CommandLines, type Ended } from '../helpers/command-lines.js'
import {
  endWithProcess,
  NBD_CLIENT,
  Program,
  RDMAKIT,
  run,
  SWAP_SERVER,
  startServer,
  temporaryFolder,
  writeTenants,
} from '../helpers/processes.js'
import {
  ELSEWHERE,
  FORBIDDEN,
  LEND,
  NBD_CLIENT_ROWS,
  RDMAKIT_ROWS,
  type Row,
  SWAP_SERVER_ROWS,
  SYSTEM,
  UNAVAILABLE,
  USAGE,
  VOLUME,
} from './bad-input-rows.js'

const folder = temporaryFolder()
const ends: (() => unknown)[] = []
/** The objects that the rows refer to, made before they run. */
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

/** @returns its port */
async function webServer(): Promise<string> {
  const server = createWebServer((_, response) => response.end())
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
    http: `iwarp://127.0.0.1:${await webServer()}`,
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

/** Whether every user may look into a folder. */
function isOpenToAll(path: string): boolean {
  return (statSync(path).mode & 0o005) === 0o005 && (path === '/' || isOpenToAll(dirname(path)))
}

/** A progress message, not the failure. */
const PROGRESS = /^nbd-client: connecting to /

const fill = (text: string) => text.replaceAll(/\{(\w+)\}/g, (_, name: string) => given[name] ?? `{${name}}`)

const wordsOf = ([words]: Row) => (words === '' ? [] : words.split(' ').map(fill))

/** That it has ended as the row says, with the folder for control sockets that it had. */
function expectRefused([words, status, says, names]: Row, ended: Ended, run: string): void {
  const lines = ended.stderr.split('\n').filter((line) => line !== '' && !PROGRESS.test(line))
  expect(lines, ended.stderr).toHaveLength(1)
  expect(lines[0]).toMatch(says)
  expect(lines[0]).toContain(fill(names ?? (words.split(' ').at(-1) as string)))
  expect(ended.status, lines[0]).toBe(status)
  expect(ended.stdout).toBe('')
  expect(readdirSync(run)).toEqual([])
}

/** By a process of its own. */
async function refused(program: string, row: Row, env: NodeJS.ProcessEnv = {}): Promise<void> {
  using run = temporaryFolder()
  await using running = new Program(program, wordsOf(row), { RDMAKIT_RUN: run.path, ...env })
  const { status, signal } = await running.ends()
  expect(signal).toBeNull()
  const { stdout, stderr } = running
  expectRefused(row, { status: status as number, stdout, stderr }, run.path)
}

const titled = (rows: readonly Row[]) => rows.map((row) => [row[0], row] as const)

describe.concurrent.each([
  ['swap-server', SWAP_SERVER, SWAP_SERVER_ROWS],
  ['nbd-client', NBD_CLIENT, NBD_CLIENT_ROWS],
  ['rdmakit', RDMAKIT, RDMAKIT_ROWS],
] as const)('%s', (_, program, rows) => {
  let lines: CommandLines
  beforeAll(() => {
    lines = new CommandLines(program)
  })
  afterAll(async () => {
    await lines[Symbol.asyncDispose]()
    expect(lines.besides).toBe('')
  })

  it.each(titled(rows))('%s', async (_, row) => {
    using run = temporaryFolder()
    expectRefused(row, await lines.run(wordsOf(row), { RDMAKIT_RUN: run.path }), run.path)
  })

  const statuses = rows.filter((row, at) => rows.findIndex(([, status]) => status === row[1]) === at)
  it.each(statuses.map((row) => [row[1], row] as const))('%i is the status of its process', (_, row) =>
    refused(program, row),
  )
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
  /**
   * Becomes the user nobody, who can create nothing in our folders, but may read a clone below a home that only root
   * can read.
   */
  const toNobody = [
    ...['--reuid=65534', '--regid=65534', '--clear-groups'],
    ...(isOpenToAll(top)
      ? []
      : ['--inh-caps=+dac_read_search', '--ambient-caps=+dac_read_search', '--securebits=+no_setuid_fixup']),
  ]
  const asNobody = (program: string, words: string, env: readonly string[] = []) =>
    run('setpriv', [...toNobody, 'env', ...env, process.execPath, program, ...words.split(' ').map(fill)])

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
      expect(running.stderr).toMatch(/^[a-z-]+: .*RDMAKIT_RUN.* cannot be created: .*\n$/)
    }
  })

  it('a run folder whose path is too long for a socket, whoever wants to serve', async () => {
    using ours = temporaryFolder()
    const long = join(ours.path, 'x'.repeat(100))
    for (const [program, words] of [
      [SWAP_SERVER, LEND],
      [NBD_CLIENT, VOLUME],
    ] as const) {
      await using running = new Program(program, words.split(' ').map(fill), { RDMAKIT_RUN: long })
      expect(await running.ends()).toEqual({ status: USAGE, signal: null })
      expect(running.stderr).toMatch(
        /^[a-z-]+: .*RDMAKIT_RUN.* bytes too long for the path of a socket; .*\n$/,
      )
      expect(running.stdout).toBe('')
    }
    expect(readdirSync(ours.path)).toEqual([])
  })

  it('a server that may make no control socket lends all the same, and says in a line what lacks', async () => {
    using ours = temporaryFolder()
    chmodSync(ours.path, 0o755)
    const { RDMAKIT_RUN: _, ...env } = { ...process.env, XDG_RUNTIME_DIR: ours.path }
    const server = endWithProcess(
      spawn(
        'setpriv',
        [
          ...[...toNobody, process.execPath, SWAP_SERVER],
          ...[...LEND.split(' '), '--audit-log', '/dev/null'],
        ],
        { env },
      ),
    )
    const ended = once(server, 'exit')
    const [text] = await once(server.stderr, 'data')
    const told = JSON.parse(String(text))
    await once(server.stdout, 'data')
    server.kill()
    expect(await ended).toEqual([0, null])
    expect(told.msg).toMatch(
      /^cannot open the control socket, so "status", "stop" and "reclaim" do not find this server: /,
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
      /<size> 100 TiB is more than swap-server \d+ has lent; it has lent nothing; "all" keeps it so\n$/,
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
