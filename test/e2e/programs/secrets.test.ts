// Secrets (a tenant's key, a session's token) are in no log, error, status or metric, whatever happens.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import {
  NBD_CLIENT,
  Program,
  run,
  SWAP_SERVER,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
  writeTenants,
} from '../helpers/processes.js'

const KEY = 'c5ec12e7fa1d22b3d4455e6f7788a99b'
const OTHER = 'c0ffee00ddba11ff1234567890abcdef'
const OPS = '0b5e55ed0b5e55ed0b5e55ed0b5e55ed'

/** Ways in which any 4 of 16 bytes may be written by accident: hex, base64, lists of numbers. */
function forms(hex: string): string[] {
  const bytes = Buffer.from(hex, 'hex')
  const texts = [bytes.toString('base64').slice(0, 20), bytes.toString('base64url').slice(0, 20)]
  for (let at = 0; at <= bytes.length - 4; at++) {
    const part = bytes.subarray(at, at + 4)
    const written = part.toString('hex')
    texts.push(written, written.match(/../g)?.join(' ') as string, part.join(','), part.join(', '))
  }
  return texts.map((form) => form.toLowerCase())
}

let folder: ReturnType<typeof temporaryFolder>
/** all output that others could read */
let said: string[]
const ends: (() => unknown)[] = []

beforeEach(() => {
  folder = temporaryFolder()
  said = []
})
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
  folder[Symbol.dispose]()
})

function kept(name: string, content: string): string {
  const path = join(folder.path, name)
  writeFileSync(path, content, { mode: 0o600 })
  return path
}

function hear({ stdout, stderr }: { stdout: string; stderr: string }): void {
  said.push(stdout, stderr)
}

function expectUntold(...secrets: string[]): void {
  const all = said.join('\n').toLowerCase()
  for (const secret of secrets) for (const form of forms(secret)) expect(all).not.toContain(form)
}

const tenants = [
  { name: 'prod', keys: [{ id: '1', secret: KEY }] },
  { name: 'ops', keys: [{ id: '1', secret: OPS }], operator: true },
]

it('keys and tokens are told nobody while sessions come, go on, are refused and end', async () => {
  const at = (name: string) => join(folder.path, name)
  const file = writeTenants(folder.path, ...tenants)
  const options = ['--memory', '8M', '--slab-size', '1M', '--log-level', 'trace', '--json']
  const { program: server, uri } = await startServer(
    [...options, '--tenants', file, '--audit-log', at('audit'), '--metrics', '127.0.0.1:0'],
    `shm://${at('server.sock')}`,
    folder.path,
  )
  ends.push(() => server.stop('SIGKILL'))
  const [, metrics] = await server.prints(/(http:\/\/127\.0\.0\.1:\d+\/metrics)/)
  const key = kept('prod.key', `1:${KEY}\n`)
  const client = await startServe(uri, '2M', folder.path, [
    ...['--tenant', 'prod', '--key-file', key, '--state', at('state'), '--metrics', '127.0.0.1:0'],
  ])
  ends.push(() => client.program.stop('SIGKILL'))
  const volume = readFileSync(join(at('state'), 'volume.json'), 'utf8')
  const [, token] = /"token": "([0-9a-f]{32})"/.exec(volume) ?? []

  // A client with another key, and one that asks as an operator.
  const wrong = kept('wrong.key', `1:${OTHER}\n`)
  for (const [tenant, file] of [
    ['prod', wrong],
    ['ops', kept('ops.key', `1:${OPS}\n`)],
  ] as const)
    hear(
      run(process.execPath, [SWAP_SERVER, 'status', uri, '--tenant', tenant, '--key-file', file, '--json']),
    )
  said.push(await (await fetch(metrics as string)).text())
  for (const program of ['swap-server', 'nbd-client'])
    said.push(JSON.stringify(await statusIn(folder.path, program)))
  // A mistake where a key is; the server says where, and goes on.
  writeFileSync(file, JSON.stringify({ tenants }).replace(`"${KEY}"`, KEY))
  server.process.kill('SIGHUP')
  await server.says(/cannot reload the tenants; they stay as they were/)
  // The session lingers, and is taken up.
  await client.program.stop('SIGKILL')
  await server.says(/session lingers/)
  const again = await startServe(uri, '2M', folder.path, [
    ...['--tenant', 'prod', '--key-file', key, '--state', at('state')],
  ])
  ends.push(() => again.program.stop('SIGKILL'))
  await again.program.stop()
  await until(
    () => readFileSync(at('audit'), 'utf8'),
    (text) => text.includes('session-resumed'),
  )
  await server.stop()
  for (const program of [server, client.program, again.program]) hear(program)
  // A folder with a mistake where the token is.
  for (const mistake of [`"token": ${token}`, `"token": "${token}00"`, `"${token}": 1`]) {
    kept('state/volume.json', volume.replace(`"token": "${token}"`, mistake))
    await using damaged = new Program(
      NBD_CLIENT,
      ['serve', '--server', uri, '--size', '2M', '--unix', at('nbd.sock'), '--state', at('state')],
      { RDMAKIT_RUN: folder.path },
    )
    expect(await damaged.ends()).toMatchObject({ status: 78 })
    hear(damaged)
  }
  said.push(readFileSync(at('audit'), 'utf8'))
  expectUntold(KEY, OTHER, OPS, token as string)
  // It would be seen.
  for (const [at, form] of forms(KEY).entries()) {
    said.push(`the key is ${form}`)
    expect(() => expectUntold(KEY), `form ${at}`).toThrow()
    said.pop()
  }
})

it.each([
  ['an id behind it', `${KEY}:1\n`],
  ['no id', `${KEY}\n`],
  ['something behind it', `1:${KEY} # of 2026\n`],
  ['two of them', `1:${KEY}\n2:${OTHER}\n`],
])('a key file with %s is refused, and not quoted', async (_, content) => {
  const key = kept('prod.key', content)
  await using program = new Program(
    NBD_CLIENT,
    [
      ...['serve', '--server', `shm://${folder.path}/none`, '--size', '2M'],
      ...['--unix', join(folder.path, 'n.sock'), '--key-file', key],
    ],
    { RDMAKIT_RUN: folder.path },
  )
  expect(await program.ends()).toMatchObject({ status: 78 })
  hear(program)
  expect(said.join('')).toMatch(/key file/)
  expectUntold(KEY, OTHER)
})

it.each([
  ['it is no text', (text: string) => text.replace(`"${KEY}"`, KEY)],
  ['a quote is missing', (text: string) => text.replace(`${KEY}"`, KEY)],
  ['it stands for a number', (text: string) => text.replace('"keys"', `"quota":"${KEY}","keys"`)],
  ['it is a name', (text: string) => text.replace('"name":"prod"', `"name":"prod","${KEY}":1`)],
  ['it is neither hex nor base64', (text: string) => text.replace(KEY, `${KEY}!`)],
])('of a tenants file with a mistake where a key is (%s) the key is not quoted', async (_, mistake) => {
  const file = kept('tenants.json', mistake(JSON.stringify({ tenants })))
  await using program = new Program(
    SWAP_SERVER,
    ['--listen', `shm://${folder.path}/s`, '--memory', '8M', '--slab-size', '1M', '--tenants', file],
    { RDMAKIT_RUN: folder.path },
  )
  expect(await program.ends()).toMatchObject({ status: 78 })
  hear(program)
  expect(said.join('')).toMatch(/tenants file/)
  expectUntold(KEY, OTHER, OPS)
})
