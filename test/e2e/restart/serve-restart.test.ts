// nbd-client serve --state: the process ends, in whatever way, and the next one serves the same volume.
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { OWN_LOOPBACK } from '../../own-loopback.js'
import { busyWriter } from '../helpers/busy-writer.js'
import {
  complete,
  NBD_CLIENT,
  Program,
  startServer,
  temporaryFolder,
  writeTenants,
} from '../helpers/processes.js'

const SIZE = '8M'
const SERVER = ['--memory', '16M', '--slab-size', '2M']

function serveArguments(folder: string, servers: readonly string[], more: readonly string[] = []): string[] {
  return [
    'serve',
    ...servers.flatMap((uri) => ['--server', uri]),
    ...['--size', SIZE, '--replicas', String(servers.length), '--connections', '2'],
    ...['--unix', join(folder, 'nbd.sock'), '--state', join(folder, 'state'), ...more],
  ]
}

async function startServing(folder: string, servers: readonly string[], more: readonly string[] = []) {
  const program = new Program(NBD_CLIENT, serveArguments(folder, servers, more), { RDMAKIT_RUN: folder })
  const [, uri] = await program.prints(/^ready (\S+)$/m)
  return { program, uri: uri as string }
}

/** Writes `byte` to 64 KiB at `at`, and checks it. */
const write = (uri: string, byte: number, at: number) =>
  complete('qemu-io', ['-f', 'raw', '-c', `write -P ${byte} ${at} 64k`, uri])
const holds = async (uri: string, byte: number, at: number) =>
  expect(await complete('qemu-io', ['-f', 'raw', '-c', `read -P ${byte} ${at} 64k`, uri])).not.toMatch(
    /fail/i,
  )

const BUSY = 6 * 2 ** 20
const BUSY_BYTES = 2 * 2 ** 20

/** The contents of the pages that were written last. */
async function contents(uri: string, folder: string): Promise<string> {
  const copy = join(folder, 'copy')
  await complete('nbdcopy', [uri, copy])
  return createHash('sha256')
    .update(readFileSync(copy).subarray(BUSY, BUSY + BUSY_BYTES))
    .digest('hex')
}

it.concurrent.each([1, 2])(
  'an export is found again after each end of its process, with %i replicas',
  async (replicas) => {
    using folder = temporaryFolder()
    const servers = []
    for (let i = 0; i < replicas; i++) servers.push(await startServer(SERVER))
    const uris = servers.map(({ uri }) => uri)
    try {
      for (const [round, signal] of (['SIGKILL', 'SIGTERM', 'SIGKILL'] as const).entries()) {
        const { program, uri } = await startServing(folder.path, uris)
        for (let before = 0; before < round; before++) await holds(uri, before + 1, before * 2 ** 20)
        await write(uri, round + 1, round * 2 ** 20)
        using _busy = await busyWriter(uri, BUSY, BUSY_BYTES)
        await program.stop(signal)
      }
      const { program, uri } = await startServing(folder.path, uris)
      const first = await contents(uri, folder.path)
      for (let again = 0; again < 3; again++) expect(await contents(uri, folder.path)).toBe(first)
      for (let before = 0; before < 3; before++) await holds(uri, before + 1, before * 2 ** 20)
      await holds(uri, 0, 4 * 2 ** 20)
      await program.stop()
    } finally {
      for (const { program } of servers) await program.stop()
    }
  },
  120_000,
)

it.concurrent('an export whose memory is gone is refused, not served empty', async () => {
  using folder = temporaryFolder()
  const server = await startServer(SERVER, `iwarp://${OWN_LOOPBACK}:0`)
  const { program } = await startServing(folder.path, [server.uri])
  await program.stop('SIGKILL')
  await server.program.stop()
  const again = await startServer(SERVER, server.uri)
  try {
    await using refused = new Program(NBD_CLIENT, serveArguments(folder.path, [again.uri]), {
      RDMAKIT_RUN: folder.path,
    })
    expect((await refused.ends()).status).toBe(1)
    expect(refused.stderr).toMatch(
      /nothing of the volume is left; to start with an empty one, remove the files/,
    )
    rmSync(join(folder.path, 'state'), { recursive: true })
    const { program: fresh, uri } = await startServing(folder.path, [again.uri])
    await holds(uri, 0, 0)
    await fresh.stop()
  } finally {
    await again.program.stop()
  }
})

it.concurrent.each([
  ['--size', '8388608', (words: string[]) => words.map((word) => (word === SIZE ? '4M' : word))],
  ['--replicas', '1', (words: string[]) => words.map((word) => (word === '1' ? '2' : word))],
])('the %s of a volume that was served cannot change', async (option, value, changed) => {
  using folder = temporaryFolder()
  const { program: server, uri: address } = await startServer(SERVER)
  try {
    const { program } = await startServing(folder.path, [address])
    await program.stop()
    expect(existsSync(join(folder.path, 'state', 'volume.json'))).toBe(true)
    const other = changed(serveArguments(folder.path, [address]))
    await using refused = new Program(NBD_CLIENT, other, { RDMAKIT_RUN: folder.path })
    expect((await refused.ends()).status).toBe(64)
    expect(refused.stderr).toContain(
      `belongs to a volume with ${option} ${value}; restore the old value, or remove`,
    )
  } finally {
    await server.stop()
  }
})

/** Names and contents of what a state folder has, but for when each was written. */
const snapshot = (folder: string) =>
  readdirSync(folder).map((name) => [name, readFileSync(join(folder, name), 'latin1')])

it.concurrent.each([
  [
    'on record',
    (text: string) =>
      text.replace(/"boot": "[0-9a-f-]{36}"/, `"boot": "${'0'.repeat(8)}-0000-4000-8000-${'0'.repeat(12)}"`),
  ],
  [
    'of an older version, which kept no record',
    (text: string) => text.replace(/,\s*"boot": "[0-9a-f-]{36}"/, ''),
  ],
])(
  'an export of an earlier boot of the machine is refused, not served with what its disk had: %s',
  async (_, change) => {
    using folder = temporaryFolder()
    const server = await startServer(SERVER)
    try {
      const { program, uri } = await startServing(folder.path, [server.uri])
      await write(uri, 1, 0)
      await program.stop('SIGKILL')
      const state = join(folder.path, 'state')
      const file = join(state, 'volume.json')
      const text = readFileSync(file, 'utf8')
      // As a loss of power leaves it: the page map on disk knows nothing of the page, and the servers still have it.
      const map = readFileSync(join(state, 'pages.map'))
      writeFileSync(join(state, 'pages.map'), map.fill(0, 4096))
      writeFileSync(file, change(text))
      expect(readFileSync(file, 'utf8')).not.toBe(text)
      utimesSync(file, 1_000_000_000, 1_000_000_000)
      const before = snapshot(state)
      await using refused = new Program(NBD_CLIENT, serveArguments(folder.path, [server.uri]), {
        RDMAKIT_RUN: folder.path,
      })
      expect((await refused.ends()).status).toBe(78)
      expect(refused.stderr).toMatch(/from before this machine was rebooted.*; remove the folder's files/)
      expect(snapshot(state)).toEqual(before)
    } finally {
      await server.program.stop()
    }
  },
)

it.concurrent('a wrong key, or that of another tenant, is said at once, and loses nothing', async () => {
  using folder = temporaryFolder()
  const key = (id: string, byte: string) => ({ id, secret: byte.repeat(32) })
  const tenants = writeTenants(
    folder.path,
    { name: 'prod', keys: [key('one', 'a1')] },
    { name: 'test', keys: [key('two', 'b2')] },
  )
  const servers = [
    await startServer([...SERVER, '--tenants', tenants]),
    await startServer([...SERVER, '--tenants', tenants]),
  ]
  const file = join(folder.path, 'key')
  const using = (tenant: string, id: string, byte: string) => {
    writeFileSync(file, `${id}:${byte.repeat(32)}\n`, { mode: 0o600 })
    return ['--tenant', tenant, '--key-file', file, '--replicas', '1']
  }
  const right = () => using('prod', 'one', 'a1')
  const uris = servers.map(({ uri }) => uri)
  try {
    const { program, uri } = await startServing(folder.path, uris, right())
    await write(uri, 7, 0)
    await write(uri, 7, 4 * 2 ** 20)
    await program.stop('SIGKILL')
    for (const [wrong, reason] of [
      [() => using('prod', 'one', 'ff'), 'the tenant, its key or the proof is wrong'],
      [() => using('test', 'two', 'b2'), 'the session is of another tenant'],
    ] as const) {
      await using refused = new Program(NBD_CLIENT, serveArguments(folder.path, uris, wrong()), {
        RDMAKIT_RUN: folder.path,
      })
      expect((await refused.ends()).status).toBe(77)
      expect(refused.stderr).toContain(
        `(EACCES): ${reason}. No other server has them, so nothing was given up`,
      )
    }
    const { program: next, uri: again } = await startServing(folder.path, uris, right())
    await holds(again, 7, 0)
    await holds(again, 7, 4 * 2 ** 20)
    expect(next.stderr).not.toMatch(/lost|I\/O errors/)
    await next.stop()
  } finally {
    for (const { program } of servers) await program.stop()
  }
})
