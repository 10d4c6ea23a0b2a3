// An operator's tools for a running swap-server: tenants and their reload, audit log, status, metrics.
import { readFileSync, renameSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { SwapServerSession } from '@rdmakit/swap-server'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  Program,
  SWAP_SERVER,
  startServer,
  temporaryFolder,
  until,
  writeTenants,
} from '../helpers/processes.js'

const MIB = 2 ** 20
const FIRST = '000102030405060708090a0b0c0d0e0f'
const SECOND = 'f0e0d0c0b0a090807060504030201000'
const keyOf = (id: string, secret: string) => ({ id, secret: Buffer.from(secret, 'hex') })

const prod = (...keys: { id: string; secret: string }[]) => ({ name: 'prod', keys, operator: true })

/** A swap-server of 8 MiB whose files and socket are in `folder`. */
const startIn = (folder: string, args: readonly string[] = []) =>
  startServer(
    ['--memory', '8M', '--slab-size', '1M', '--json', ...args],
    `shm://${join(folder, 'server.sock')}`,
    folder,
  )

/** Runs swap-server to its end. */
async function command(folder: string, ...args: string[]) {
  await using program = new Program(SWAP_SERVER, args, { RDMAKIT_RUN: folder })
  const { status } = await program.ends()
  return { status, stdout: program.stdout, stderr: program.stderr }
}

const events = (path: string) =>
  readFileSync(path, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line).event as string)

it('SIGHUP reads the tenants anew, and opens the audit log anew', async () => {
  using folder = temporaryFolder()
  const tenants = writeTenants(folder.path, prod({ id: '1', secret: FIRST }))
  const audit = join(folder.path, 'audit.log')
  const { program, uri } = await startIn(folder.path, ['--tenants', tenants, '--audit-log', audit])
  await using server = program
  const open = (id: string, secret: string) =>
    SwapServerSession.open([uri], { tenant: 'prod', key: keyOf(id, secret) })
  const old = await open('1', FIRST)
  await expect(open('2', SECOND)).rejects.toMatchObject({ code: 'EACCES' })

  writeTenants(folder.path, prod({ id: '2', secret: SECOND }))
  renameSync(audit, `${audit}.1`)
  server.process.kill('SIGHUP')
  await until(
    () => statSync(audit, { throwIfNoEntry: false }) !== undefined && events(audit).length > 0,
    (written) => written,
  )
  await expect(open('1', FIRST)).rejects.toMatchObject({ code: 'EACCES' })
  const next = await open('2', SECOND)
  expect(await old.allocate(1)).toHaveLength(1)
  expect(events(`${audit}.1`)).toEqual(['session-opened', 'refused'])
  expect(events(audit)).toEqual(['tenants-reloaded', 'refused', 'session-opened', 'slabs-allocated'])

  writeFileSync(tenants, '{"tenants": 1}')
  server.process.kill('SIGHUP')
  await server.says(/"tenants\\" is not a list/)
  await (await open('2', SECOND)).close()
  writeTenants(folder.path, { name: 'prod' })
  server.process.kill('SIGHUP')
  await server.says(/no longer has keys, and without keys the server is open to all/)
  await expect(SwapServerSession.open([uri], { tenant: 'prod' })).rejects.toMatchObject({ code: 'EACCES' })
  await (await open('2', SECOND)).close()
  await next.close()
  await old.close()
  expect(await server.stop()).toMatchObject({ status: 0 })
})

it('status tells of the servers and sessions of this machine, in tables and as JSON', async () => {
  using folder = temporaryFolder()
  expect(await command(folder.path, 'status')).toMatchObject({
    status: 69,
    stdout: 'no swap-server is running\n',
  })
  expect(await command(folder.path, 'status', '--json')).toMatchObject({ status: 69, stdout: '[]\n' })
  const { program, uri } = await startIn(folder.path)
  await using server = program
  const session = await SwapServerSession.open([uri], { client: 'a client' })
  await session.allocate(3)
  const pid = server.process.pid
  expect(statSync(join(folder.path, `swap-server-${pid}.sock`)).mode & 0o777).toBe(0o600)

  const json = await command(folder.path, 'status', '--json')
  expect(JSON.parse(json.stdout)).toMatchObject([
    {
      pid,
      listeners: [uri],
      slabSize: MIB,
      totalSlabs: 8,
      freeSlabs: 5,
      sessions: 1,
      sessionList: [{ client: 'a client', tenant: 'default', slabs: 3 }],
    },
  ])
  const { stdout } = await command(folder.path, 'status')
  expect(stdout).toMatch(/^SERVER +PID +LENDS +FREE +SESSIONS +CPU +UP/m)
  expect(stdout).toMatch(new RegExp(`^${uri} +${pid} +8 MiB +5 MiB +1 `, 'm'))
  expect(stdout).toMatch(/^a client +default +\S+ +3 MiB +0 +\d+ s +connected$/m)
  expect(stdout).not.toContain('\x1b')
  await session.close()
  expect(await server.stop()).toMatchObject({ status: 0 })
  expect((await command(folder.path, 'status')).stdout).toBe('no swap-server is running\n')
})

it('status asks a remote server, with a key where it has keys', async () => {
  using folder = temporaryFolder()
  const tenants = writeTenants(folder.path, prod({ id: '1', secret: FIRST }))
  const { program, uri } = await startIn(folder.path, ['--tenants', tenants])
  await using _ = program
  const keyFile = join(folder.path, 'prod.key')
  writeFileSync(keyFile, `1:${FIRST}\n`, { mode: 0o600 })
  const asked = await command(folder.path, 'status', uri, '--tenant', 'prod', '--key-file', keyFile, '--json')
  expect(asked).toMatchObject({ status: 0, stderr: '' })
  expect(JSON.parse(asked.stdout)).toMatchObject([
    { listeners: [uri], totalSlabs: 8, sessionList: [{ tenant: 'prod' }] },
  ])
  expect(await command(folder.path, 'status', uri)).toMatchObject({
    status: 77,
    stderr: `swap-server: ${uri}: this server requires a key: --tenant and --key-file\n`,
  })
  writeFileSync(keyFile, `1:${SECOND}\n`)
  expect(await command(folder.path, 'status', uri, '--tenant', 'prod', '--key-file', keyFile)).toMatchObject({
    status: 77,
    stderr: `swap-server: ${uri}: the tenant, its key or the proof is wrong\n`,
  })
})

it('status removes the sockets of servers that were killed', async () => {
  using folder = temporaryFolder()
  const { program } = await startIn(folder.path)
  await program.stop('SIGKILL')
  const socket = join(folder.path, `swap-server-${program.process.pid}.sock`)
  expect(statSync(socket).isSocket()).toBe(true)
  expect((await command(folder.path, 'status')).stdout).toBe('no swap-server is running\n')
  expect(statSync(socket, { throwIfNoEntry: false })).toBeUndefined()
})

it.each([
  [
    78,
    ['--tenants', '/nonexistent/tenants'],
    /^swap-server: --tenants: tenants file .* there is no such file$/m,
  ],
  [
    64,
    ['--audit-log', '/nonexistent/audit'],
    /^swap-server: --audit-log .*: the folder \/nonexistent does not exist/m,
  ],
  [64, ['--metrics', 'nowhere'], /^swap-server: --metrics "nowhere" is not host:port/m],
  [64, ['--metrics', '127.0.0.1:65536'], /^swap-server: --metrics "127.0.0.1:65536" is not host:port/m],
  [64, ['--unknown'], /unknown option '--unknown'/],
  [64, ['--memory', 'much'], /^swap-server: --memory "much" is not a size/m],
])('ends with %i for %j', async (status, args, sentence) => {
  using folder = temporaryFolder()
  const ended = await command(
    folder.path,
    ...['--listen', `shm://${join(folder.path, 's.sock')}`, '--memory', '8M', '--slab-size', '1M', ...args],
  )
  expect(ended.stderr).toMatch(sentence)
  expect(ended.status).toBe(status)
})

describe('a server that runs', () => {
  const folder = temporaryFolder()
  let server: Program
  let uri: string
  let endpoint: string

  beforeAll(async () => {
    ;({ program: server, uri } = await startIn(folder.path, ['--metrics', '0']))
    const metrics = /"event":"metrics","uri":"(http:\/\/127\.0\.0\.1:\d+\/metrics)"/
    endpoint = (await server.prints(metrics))[1] as string
  })

  afterAll(async () => {
    await server.stop()
    folder[Symbol.dispose]()
  })

  it('--metrics serves what Prometheus reads', async () => {
    const session = await SwapServerSession.open([uri])
    await session.allocate(2)
    await expect(session.allocate(7)).rejects.toMatchObject({ code: 'ENOSPC' })
    const reply = await fetch(endpoint)
    expect(reply.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/)
    const text = await reply.text()
    for (const line of [
      `rdmakit_swap_server_slab_bytes ${MIB}`,
      'rdmakit_swap_server_slabs{state="lent"} 2',
      'rdmakit_swap_server_slabs{state="free"} 6',
      'rdmakit_swap_server_sessions{state="connected"} 1',
      'rdmakit_swap_server_sessions_total{end="opened"} 1',
      'rdmakit_swap_server_sessions_total{end="ended"} 0',
      'rdmakit_swap_server_refusals_total{code="ENOSPC"} 1',
      'rdmakit_swap_server_request_duration_seconds_count{request="hello"} 1',
      'rdmakit_swap_server_request_duration_seconds_count{request="allocate"} 2',
    ])
      expect(text.split('\n')).toContain(line)
    expect(text).toMatch(/^rdmakit_swap_server_info\{epoch="[0-9a-f]{16}"\} 1$/m)
    expect(text).toMatch(/^rdmakit_swap_server_process_cpu_seconds_total /m)
    for (const line of text.split('\n').filter((each) => each !== '' && !each.startsWith('#')))
      expect(line).toMatch(/^rdmakit_swap_server_[a-z0-9_]+(\{[^}]*\})? -?[0-9.e+-]+$/)
    expect((await fetch(new URL('/', endpoint))).status).toBe(404)
    expect((await fetch(endpoint, { method: 'POST' })).status).toBe(404)
    await session.close()
  })

  it.each(['SIGINT', 'SIGTERM'] as const)(
    'status --watch prints again and again until %s',
    async (signal) => {
      await using watch = new Program(SWAP_SERVER, ['status', '--json', '--watch', '0.1'], {
        RDMAKIT_RUN: folder.path,
      })
      await watch.prints(/^\[.*\]\n\[.*\]\n/)
      expect(await watch.stop(signal)).toMatchObject({ status: 0 })
      for (const line of watch.stdout.split('\n').slice(0, -1)) expect(JSON.parse(line)).toHaveLength(1)
      await using table = new Program(SWAP_SERVER, ['status', '--watch'], { RDMAKIT_RUN: folder.path })
      await table.prints(/^SERVER /m)
      expect(await table.stop(signal)).toMatchObject({ status: 0, signal: null })
      expect(table.stderr).toBe('')
    },
  )

  it('ends with 73 when an address is taken', async () => {
    const ended = await command(
      folder.path,
      ...['--listen', `shm://${join(folder.path, 's.sock')}`, '--memory', '8M', '--slab-size', '1M'],
      ...['--metrics', new URL(endpoint).host],
    )
    expect(ended).toMatchObject({ status: 73, stderr: expect.stringMatching(/EADDRINUSE/) })
  })
})
