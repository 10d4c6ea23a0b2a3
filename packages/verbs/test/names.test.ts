import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, expect, it } from 'vitest'

const folder = mkdtempSync(join(tmpdir(), 'rdmakit-names-'))
afterAll(() => rmSync(folder, { recursive: true }))

const HOSTS = `
::1 twofold
127.0.0.1 twofold
fd00::1 silent
10.9.0.2 silent
::1 nobody
10.8.0.1 nobody
`
/** The resolver names 10.9.0.2 before fd00::1, and what is sent there is lost: the loopback device gives it back. */
const NETWORK = [
  'ip link set lo up',
  'ip addr add 10.8.0.1/32 dev lo',
  'ip addr add fd00::1/128 dev lo nodad',
  'ip addr add fe80::77/64 dev lo nodad',
  'ip route add 10.9.0.0/24 dev lo src 10.8.0.1',
]

/** Runs a scenario of names.mjs in a network of its own. */
async function run(scenario: string, env: NodeJS.ProcessEnv = {}): Promise<unknown> {
  const hosts = join(folder, 'hosts')
  writeFileSync(hosts, HOSTS)
  const fifo = join(folder, scenario)
  const script = join(import.meta.dirname, 'names.mjs')
  const steps = [
    ...NETWORK,
    `mount --bind '${hosts}' /etc/hosts`,
    `mkfifo '${fifo}'`,
    `exec '${process.execPath}' '${script}' ${scenario} '${fifo}'`,
  ]
  const { stdout } = await promisify(execFile)(
    'unshare',
    ['--mount', '--net', 'sh', '-c', steps.join(' && ')],
    {
      env: { ...process.env, ...env },
      timeout: 50_000,
      killSignal: 'SIGKILL',
    },
  )
  return JSON.parse(stdout)
}

it('every address of a name is tried, and one of IPv6 with its interface', async () => {
  expect(await run('addresses')).toEqual({
    later: 'iwarp://127.0.0.1',
    earlier: 'iwarp://[::1]',
    silent: 'iwarp://[fd00::1]',
    refused: 'ECONNREFUSED',
    scoped: 'iwarp://[fe80::77%lo]',
    escaped: 'iwarp://[fe80::77%lo]',
    index: 'iwarp://[fe80::77%lo]',
    unknown: 'ENODEV',
  })
})

it('a lookup does not outlive the deadline or the signal of who asks, whoever keeps the pool busy', async () => {
  expect(await run('busy', { UV_THREADPOOL_SIZE: '1' })).toEqual({
    late: 'ETIMEDOUT',
    aborted: 'Error: enough',
    listen: 'ETIMEDOUT',
    numeric: 'iwarp://127.0.0.1',
  })
})
