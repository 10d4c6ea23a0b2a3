import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chmodSync, existsSync, lchownSync, readFileSync, renameSync, statSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { RingConnection } from '@rdmakit/ring-transport'
import { pino } from 'pino'
import { afterEach, expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { AuditLog, type Key, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'
import { control } from '../../src/protocol/messages.js'
import { OperatorFile } from './tenants-fixture.js'

const MIB = 2 ** 20
const key: Key = { id: 'k1', secret: randomBytes(32) }
const ends: (() => unknown)[] = []
let sockets = 0

afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

/** A server with one tenant whose audit log is in a file. */
async function serve() {
  const file = new OperatorFile({
    tenants: [{ name: 'prod', keys: [{ id: key.id, secret: key.secret.toString('hex') }] }],
  })
  ends.push(() => file[Symbol.dispose]())
  const path = join(file.folder, 'audit.log')
  const audit = new AuditLog(pino({ level: 'silent' }), path)
  ends.push(() => audit.close())
  const server = new SwapServer({ memory: 4 * MIB, slabSize: MIB, tenants: Tenants.load(file.path), audit })
  ends.push(() => server.close())
  const uri = await server.listen(`shm:///tmp/rdmakit-audit-${process.pid}-${++sockets}.sock`)
  return { file, path, audit, server, uri }
}

/** Each line is JSON, or this throws. */
function lines(path: string): Record<string, unknown>[] {
  const text = readFileSync(path, 'utf8')
  expect(text === '' || text.endsWith('\n')).toBe(true)
  return text
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line))
}

it('records who had memory, when, and why it ended', async () => {
  const { path, server, uri } = await serve()
  const before = Date.now()
  const session = await SwapServerSession.open([uri], { tenant: 'prod', key, client: 'host "a"\n' })
  const slabs = await session.allocate(2)
  await session.free(slabs.slice(0, 1))
  await session.close()
  await eventually(() => server.sessions === 0)
  const who = { level: 'info', tenant: 'prod', keyId: 'k1', client: 'host "a"?', peer: expect.any(String) }
  const recorded = lines(path)
  expect(recorded).toMatchObject([
    { ...who, event: 'session-opened' },
    { ...who, event: 'slabs-allocated', slabs: 2, held: 2 },
    { ...who, event: 'slabs-freed', slabs: 1, held: 1 },
    { ...who, event: 'session-ended', slabs: 1, reason: expect.any(String) },
  ])
  for (const { time } of recorded) {
    expect(Date.parse(String(time))).toBeGreaterThanOrEqual(before)
    expect(Date.parse(String(time))).toBeLessThanOrEqual(Date.now())
  }
  expect(JSON.stringify(recorded)).not.toContain(key.secret.toString('hex'))
  expect(statSync(path).mode & 0o777).toBe(0o600)
})

it('records refusals with their reason', async () => {
  const { path, uri } = await serve()
  const wrong = { id: 'k1', secret: randomBytes(32) }
  await expect(SwapServerSession.open([uri], { tenant: 'prod', key: wrong })).rejects.toThrow()
  const session = await SwapServerSession.open([uri], { tenant: 'prod', key })
  ends.push(() => session.close())
  await expect(session.allocate(5)).rejects.toMatchObject({ code: 'ENOSPC' })
  expect(lines(path)).toMatchObject([
    {
      event: 'refused',
      request: 'proof',
      code: 'EACCES',
      reason: 'the tenant, its key or the proof is wrong',
    },
    { event: 'session-opened' },
    { event: 'refused', request: 'allocate', code: 'ENOSPC', tenant: 'prod' },
  ])
})

it('names the tenant and key that a refused client claimed to have', async () => {
  const { path, uri } = await serve()
  const wrong = { id: 'k9', secret: randomBytes(32) }
  await expect(
    SwapServerSession.open([uri], { tenant: 'prod', key: wrong, client: 'mallory' }),
  ).rejects.toThrow()
  expect(lines(path)).toMatchObject([
    { event: 'refused', claims: { tenant: 'prod', keyId: 'k9', client: 'mallory' } },
  ])
  expect(lines(path)[0]).not.toHaveProperty('tenant')
})

it('records a reload, and the end of a tenant that is gone', async () => {
  const { file, path, server, uri } = await serve()
  const session = await SwapServerSession.open([uri], { tenant: 'prod', key })
  file.write({ tenants: [{ name: 'other', keys: [{ id: '1', secret: randomBytes(16).toString('hex') }] }] })
  server.reloadTenants()
  await session.lost
  expect(lines(path).slice(1)).toMatchObject([
    { event: 'tenants-reloaded', added: ['other'], removed: ['prod'] },
    { event: 'session-ended', tenant: 'prod', reason: 'its tenant was removed' },
  ])
})

it('goes on in a new file after it was moved away and opened anew', async () => {
  const { path, audit, uri } = await serve()
  const first = await SwapServerSession.open([uri], { tenant: 'prod', key })
  ends.push(() => first.close())
  renameSync(path, `${path}.1`)
  await first.allocate(1)
  expect(existsSync(path)).toBe(false)
  audit.reopen()
  await first.allocate(1)
  expect(lines(`${path}.1`).map(({ event }) => event)).toEqual(['session-opened', 'slabs-allocated'])
  expect(lines(path).map(({ event }) => event)).toEqual(['slabs-allocated'])
})

it('appends to what is there', async () => {
  const { path } = await serve()
  const again = new AuditLog(pino({ level: 'silent' }), path)
  again.record({}, { event: 'session-opened' })
  again.close()
  const third = new AuditLog(pino({ level: 'silent' }), path)
  third.record({}, { event: 'session-resumed' })
  third.close()
  expect(lines(path).map(({ event }) => event)).toEqual(['session-opened', 'session-resumed'])
})

it('writes 20 refusals a second at most, and how many it left out', async () => {
  const { path, audit } = await serve()
  const refused = { event: 'refused', request: 'hello', code: 'EACCES', reason: 'no' } as const
  vi.useFakeTimers({ toFake: ['Date'], now: 1_000_000 })
  onTestFinished(() => void vi.useRealTimers())
  for (let i = 0; i < 500; i++) audit.record({}, refused)
  vi.setSystemTime(1_000_999)
  for (let i = 0; i < 500; i++) audit.record({}, refused)
  expect(lines(path)).toHaveLength(20)
  vi.setSystemTime(1_001_000)
  for (let i = 0; i < 2; i++) audit.record({}, refused)
  expect(lines(path)).toHaveLength(22)
  expect(lines(path).map(({ unwritten }) => unwritten ?? 0)).toEqual([...Array(20).fill(0), 980, 0])
})

it('loses lines, not the server, when the file cannot be opened anew', async () => {
  const { file, path, audit, uri } = await serve()
  const session = await SwapServerSession.open([uri], { tenant: 'prod', key })
  ends.push(() => session.close())
  file[Symbol.dispose]()
  audit.reopen()
  expect(await session.allocate(1)).toHaveLength(1)
  expect(existsSync(path)).toBe(false)
})

it('says nothing of a client that leaves before it has said who it is', async () => {
  const { path, uri } = await serve()
  const connection = await RingConnection.connect(uri)
  const hello = { version: 1, tenant: 'prod', keyId: 'k1', nonce: randomBytes(32) }
  await connection.request(control.Request.encode({ hello }).finish())
  await connection.close()
  const session = await SwapServerSession.open([uri], { tenant: 'prod', key })
  ends.push(() => session.close())
  expect(lines(path).map(({ event }) => event)).toEqual(['session-opened'])
})

it('takes no pipe, whose reader could stop the server', async () => {
  const { path, audit, server, uri } = await serve()
  const pipe = `${path}.pipe`
  execFileSync('mkfifo', [pipe])
  expect(() => new AuditLog(pino({ level: 'silent' }), pipe)).toThrow(/is a pipe/)
  renameSync(path, `${path}.1`)
  renameSync(pipe, path)
  audit.reopen()
  const session = await SwapServerSession.open([uri], { tenant: 'prod', key })
  await session.close()
  await eventually(() => server.sessions === 0)
  expect(lines(`${path}.1`)).toMatchObject([{ event: 'session-opened' }, { event: 'session-ended' }])
})

it('takes no file that others can write to, replace, or have chosen', () => {
  using file = new OperatorFile('')
  const open = (path = file.path) => new AuditLog(pino({ level: 'silent' }), path).close()
  for (const mode of [0o666, 0o620]) {
    chmodSync(file.path, mode)
    expect(() => open()).toThrow(/can be written by others; "chmod go-w \/\S+"$/)
  }
  // Read access for others is permitted.
  chmodSync(file.path, 0o640)
  open()
  chmodSync(file.folder, 0o777)
  expect(() => open()).toThrow(/can be replaced by others: .*; "chmod go-w \/\S+"$/)
  chmodSync(file.folder, 0o1777)
  open()
  if (process.geteuid?.() !== 0) return
  const link = join(file.folder, 'link')
  symlinkSync(file.path, link)
  open(link)
  lchownSync(link, 4242, 4242)
  expect(() => open(link)).toThrow(/belongs to user 4242$/)
})
