// A tenant that does what it can to a server, beside one that reads and writes: nothing of the other's is lost.
import { spawn } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { effort } from '../../effort.js'
import { top } from '../../lab/base/paths.js'
import { VerifyingFio } from '../helpers/fio.js'
import { longestStop } from '../helpers/loop-delay.js'
import {
  endWithProcess,
  startServe,
  startServer,
  temporaryFolder,
  until,
  writeTenants,
} from '../helpers/processes.js'

const here = (name: string) => join(top, 'test/e2e/helpers', name)
const GOOD = 'ab'.repeat(32)
const HOSTILE = 'cd'.repeat(32)
const SECONDS = effort(20)

let sockets = 0
const ADDRESSES = {
  iwarp: () => 'iwarp://127.0.0.1:0',
  shm: () => `shm:///tmp/rdmakit-hostile-${process.pid}-${++sockets}.sock`,
}
const KINDS = ['sessions', 'connections', 'requests', 'garbage'] as const
const cases = KINDS.flatMap((kind) =>
  Object.entries(ADDRESSES).map(([over, address]) => ({ kind, over, address })),
)

/** Reads and writes for a while, and verifies. @returns the 99th percentile of its writes, in microseconds */
async function work(uri: string): Promise<number> {
  await using fio = new VerifyingFio(uri, '8M')
  await delay(1_000 * SECONDS)
  return await fio.end()
}

it.each(cases)(
  '$kind, over $over',
  async ({ kind, over, address }) => {
    using folder = temporaryFolder()
    const tenants = writeTenants(
      folder.path,
      { name: 'prod', keys: [{ id: '1', secret: GOOD }] },
      { name: 'hostile', quota: '1M', keys: [{ id: '1', secret: HOSTILE }] },
    )
    const keyFile = join(folder.path, 'prod.key')
    writeFileSync(keyFile, `1:${GOOD}\n`, { mode: 0o600 })
    const delays = join(folder.path, 'loop-delay')
    const { program: server, uri } = await startServer(
      ['--memory', '64M', '--slab-size', '1M', '--headroom', '0', '--tenants', tenants],
      address(),
      {
        NODE_OPTIONS: `--import ${here('loop-delay.mjs')}`,
        RDMAKIT_LOOP_DELAY: delays,
        RDMAKIT_RUN: folder.path,
      },
    )
    await using _server = server
    const { program: client, uri: nbd } = await startServe(uri, '16M', folder.path, [
      ...['--tenant', 'prod', '--key-file', keyFile, '--connections', '2'],
    ])
    await using _client = client
    const alone = await work(nbd)
    // It is on another machine: what it computes there takes nothing from this one. What it costs the server does.
    const elsewhere = ['-n', '19', process.execPath]
    const hostile = endWithProcess(
      spawn('nice', [...elsewhere, here('hostile-tenant.mjs'), kind, uri, HOSTILE], {
        stdio: ['pipe', 'pipe', 'inherit'],
      }),
    )
    let count = 0
    hostile.stdout.setEncoding('utf8').on('data', (text: string) => {
      count = Number(/count (\d+)\n$/.exec(text)?.[1] ?? count)
    })
    try {
      await until(
        () => count,
        (now) => now > 0,
      )
      const beside = await work(nbd)
      console.log(
        `${kind} over ${over}: ${count} times; p99 of writes ${alone} µs alone, ${beside} µs beside it; ${longestStop(delays)}`,
      )
      expect(client.stderr).not.toMatch(/lost|gone|gave up/)
      expect(server.process.exitCode).toBeNull()
    } finally {
      hostile.kill('SIGKILL')
    }
  },
  600_000,
)
