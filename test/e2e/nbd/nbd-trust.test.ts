// nbd-client with servers that want a key, and its metrics. At the same time, for one waits for calls every 2 s.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import {
  complete,
  NBD_CLIENT,
  Program,
  startServe,
  startServer,
  temporaryFolder,
  writeTenants,
} from '../helpers/processes.js'

const FIRST = '000102030405060708090a0b0c0d0e0f'
const SECOND = 'f0e0d0c0b0a090807060504030201000'

function writeKey(folder: string, id: string, secret: string): string {
  const path = join(folder, 'prod.key')
  writeFileSync(path, `${id}:${secret}\n`, { mode: 0o600 })
  return path
}

const prod = (id: string, secret: string) => ({ name: 'prod', keys: [{ id, secret }] })

/** A swap-server of 8 MiB on shared memory whose files are in `folder`. */
const start = (folder: string, name: string, args: readonly string[] = []) =>
  startServer(['--memory', '8M', '--slab-size', '1M', ...args], `shm://${join(folder, name)}`, folder)

/** Runs nbd-client serve, which should end by itself. */
async function refused(folder: string, server: string, ...args: string[]) {
  await using program = new Program(
    NBD_CLIENT,
    ['serve', '--server', server, '--size', '2M', '--unix', join(folder, 'n.sock'), ...args],
    { RDMAKIT_RUN: folder },
  )
  const { status } = await program.ends()
  return { status, stderr: program.stderr }
}

it.concurrent('serves with the key of its tenant, and not without', async () => {
  using folder = temporaryFolder()
  const tenants = writeTenants(folder.path, prod('1', FIRST))
  const { program, uri } = await start(folder.path, 'server.sock', ['--tenants', tenants])
  await using _ = program
  const key = writeKey(folder.path, '1', FIRST)
  const client = await startServe(uri, '4M', folder.path, ['--tenant', 'prod', '--key-file', key])
  await using nbd = client.program
  writeFileSync(join(folder.path, 'image'), Buffer.alloc(4 * 2 ** 20, 'page'))
  await complete('nbdcopy', [join(folder.path, 'image'), client.uri])
  await complete('nbdcopy', [client.uri, join(folder.path, 'copy')])
  await complete('cmp', [join(folder.path, 'image'), join(folder.path, 'copy')])
  expect(await nbd.stop()).toMatchObject({ status: 0 })

  expect(await refused(folder.path, uri)).toMatchObject({
    status: 77,
    stderr: expect.stringMatching(/this server requires a key: --tenant and --key-file$/m),
  })
  writeKey(folder.path, '1', SECOND)
  expect(await refused(folder.path, uri, '--tenant', 'prod', '--key-file', key)).toMatchObject({
    status: 77,
    stderr: expect.stringMatching(/the tenant, its key or the proof is wrong$/m),
  })
})

it.concurrent('with a key takes no memory of a server without', async () => {
  using folder = temporaryFolder()
  const { program, uri } = await start(folder.path, 'server.sock')
  await using _ = program
  const key = writeKey(folder.path, '1', FIRST)
  expect(await refused(folder.path, uri, '--key-file', key)).toMatchObject({
    status: 77,
    stderr: expect.stringMatching(/the server does not prove on this connection that it has the key/),
  })
})

it.concurrent.each(['serve', 'attach'])(
  '%s says what is wrong with a key file before it calls a server',
  async (command) => {
    using folder = temporaryFolder()
    const key = writeKey(folder.path, '1', 'short')
    await using program = new Program(
      NBD_CLIENT,
      [command, '--server', `shm://${folder.path}/none`, '--size', '2M', '--key-file', key].concat(
        command === 'serve' ? ['--unix', join(folder.path, 'n.sock')] : [],
      ),
      { RDMAKIT_RUN: folder.path },
    )
    expect(await program.ends()).toMatchObject({ status: 78 })
    expect(program.stderr).toMatch(/^nbd-client: --key-file: key file \S+: the secret has 3 bytes/)
  },
)

it.concurrent('takes a server back with the key that its file has by then', async () => {
  using folder = temporaryFolder()
  const tenants = writeTenants(folder.path, prod('1', FIRST))
  const keep = await start(folder.path, 'keep.sock', ['--tenants', tenants])
  await using _ = keep.program
  const first = await start(folder.path, 'server.sock', ['--tenants', tenants])
  const key = writeKey(folder.path, '1', FIRST)
  const { program } = await startServe(first.uri, '2M', folder.path, [
    ...['--server', keep.uri, '--replicas', '2', '--tenant', 'prod', '--key-file', key],
  ])
  await using nbd = program
  await first.program.stop()
  writeTenants(folder.path, prod('2', SECOND))
  const again = await start(folder.path, 'server.sock', ['--tenants', tenants])
  await using __ = again.program
  await nbd.says(/the tenant, its key or the proof is wrong; it is called again$/m)
  writeFileSync(key, 'half a ke')
  await nbd.says(/is not one line "id:secret"; it is called again$/m)
  writeKey(folder.path, '2', SECOND)
  await nbd.says(/server\.sock joins again, with empty memory$/m)
  expect(nbd.stderr.match(/the proof is wrong/g)).toHaveLength(1)
  expect(await nbd.stop()).toMatchObject({ status: 0 })
})

it.concurrent('--metrics serves counters and latencies to Prometheus', async () => {
  using folder = temporaryFolder()
  const { program, uri } = await start(folder.path, 'server.sock')
  await using _ = program
  const client = await startServe(uri, '4M', folder.path, ['--metrics', '127.0.0.1:0'])
  await using nbd = client.program
  const [, endpoint] = await nbd.prints(/^metrics (http:\/\/127\.0\.0\.1:\d+\/metrics)$/m)
  const scrape = async () => {
    const text = await (await fetch(endpoint as string)).text()
    const values = new Map<string, number>()
    for (const line of text.split('\n').filter((each) => each !== '' && !each.startsWith('#'))) {
      expect(line).toMatch(/^rdmakit_nbd_[a-z0-9_]+(\{[^}]*\})? -?[0-9.e+-]+$/)
      const cut = line.lastIndexOf(' ')
      values.set(line.slice('rdmakit_nbd_'.length, cut), Number(line.slice(cut)))
    }
    return { text, values }
  }
  const before = (await scrape()).values
  expect(before.get('requests_total{kind="write"}')).toBe(0)
  expect(before.get('request_duration_seconds_count{kind="write"}')).toBe(0)
  writeFileSync(join(folder.path, 'image'), Buffer.alloc(4 * 2 ** 20, 'page'))
  await complete('nbdcopy', ['--request-size=65536', join(folder.path, 'image'), client.uri])
  await complete('nbdcopy', ['--request-size=65536', client.uri, join(folder.path, 'copy')])

  const { text, values } = await scrape()
  expect(values.get('size_bytes')).toBe(4 * 2 ** 20)
  expect(values.get('slabs{state="mapped"}')).toBe(4)
  expect(values.get(`server_up{server="${uri}"}`)).toBe(1)
  expect(values.get('written_pages')).toBe(1024)
  expect(values.get('lost_pages')).toBe(0)
  expect(values.get('errors_total')).toBe(0)
  expect(text).toMatch(/^# TYPE rdmakit_nbd_request_duration_seconds histogram$/m)
  for (const kind of ['read', 'write']) {
    expect(values.get(`bytes_total{kind="${kind}"}`)).toBe(4 * 2 ** 20)
    const count = values.get(`request_duration_seconds_count{kind="${kind}"}`) as number
    expect(count).toBe(64)
    expect(values.get(`requests_total{kind="${kind}"}`)).toBe(count)
    expect(values.get(`request_duration_seconds_bucket{le="+Inf",kind="${kind}"}`)).toBe(count)
    const buckets = [...values].filter(
      ([name]) => name.includes('_bucket{') && name.includes(`kind="${kind}"`),
    )
    expect(buckets).toHaveLength(26)
    expect(buckets.map(([, value]) => value)).toEqual(
      buckets.map(([, value]) => value).toSorted((a, b) => a - b),
    )
    const sum = values.get(`request_duration_seconds_sum{kind="${kind}"}`) as number
    expect(sum).toBeGreaterThan(count * 1e-7)
    expect(sum).toBeLessThan(count * 20)
  }
  expect(await nbd.stop()).toMatchObject({ status: 0 })
})

it.concurrent('--metrics of a wrong address is said at once', async () => {
  using folder = temporaryFolder()
  expect(await refused(folder.path, `shm://${folder.path}/none`, '--metrics', 'somewhere')).toMatchObject({
    status: 64,
    stderr: expect.stringMatching(/^nbd-client: --metrics "somewhere" is not host:port/),
  })
})
