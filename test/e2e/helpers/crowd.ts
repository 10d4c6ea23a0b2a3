// A client with a key whose link is cut repeatedly, beside a crowd without one.
import { spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { top } from '../../lab/base/paths.js'
import { Wire } from '../../wire.js'
import { longestStop } from './loop-delay.js'
import {
  complete,
  endWithProcess,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
  writeTenants,
} from './processes.js'

const here = (name: string) => join(top, 'test/e2e/helpers', name)

export interface CrowdOptions {
  readonly peers: number
  readonly cuts: number
  /** milliseconds from each resumption to the next cut */
  readonly pause: number
}

/** The observations; times in milliseconds, memory in bytes. */
export interface CrowdReport {
  readonly resumed: readonly number[]
  /** of the server's RSS, from before the crowd came to the most while it was there */
  readonly grown: number
  /** how often one of the crowd was thrown out */
  readonly thrownOut: number
  /** how long the server's event loop stood still at most, in words */
  readonly longestStop: string
  readonly lost: string
  /** why the server opens no new sessions any more */
  readonly impaired: object | undefined
}

const SECRET = 'ab'.repeat(32)

/** Cuts a client's link while the crowd is there. @throws when a page is not what was written, or an error */
export async function besideCrowd({ peers, cuts, pause }: CrowdOptions): Promise<CrowdReport> {
  using folder = temporaryFolder()
  const tenants = writeTenants(folder.path, { name: 'prod', keys: [{ id: '1', secret: SECRET }] })
  const keyFile = join(folder.path, 'prod.key')
  writeFileSync(keyFile, `1:${SECRET}\n`, { mode: 0o600 })
  const delays = join(folder.path, 'loop-delay')
  const env = {
    NODE_OPTIONS: `--import ${here('loop-delay.mjs')}`,
    RDMAKIT_LOOP_DELAY: delays,
    RDMAKIT_RUN: folder.path,
  }
  const { program: server, uri } = await startServer(
    ['--memory', '64M', '--slab-size', '16M', '--headroom', '0', '--tenants', tenants],
    'iwarp://127.0.0.1:0',
    env,
  )
  await using _server = server
  const port = Number(new URL(uri).port)
  const wire = await Wire.to(uri)
  const { program: client, uri: nbd } = await startServe(wire.uri, '16M', folder.path, [
    ...['--tenant', 'prod', '--key-file', keyFile, '--connections', '1'],
  ])
  await using _client = client
  await qemuIo(nbd, 'write -P 0x5a 0 1M')
  const rss = () => residentBytes(server.process.pid as number)
  const before = rss()
  let most = before
  const watching = setInterval(() => {
    most = Math.max(most, rss())
  }, 200)
  const crowd = startCrowd(port, peers)
  try {
    await until(
      () => crowd.thrownOut(),
      (count) => count >= peers / 2,
    )
    const resumed: number[] = []
    for (let cut = 0; cut < cuts; cut++) {
      const begin = performance.now()
      wire.break()
      await qemuIo(nbd, `read -P 0x5a ${(cut % 256) * 4096} 4096`)
      resumed.push(performance.now() - begin)
      await delay(pause)
    }
    const lost = client.stderr.split('\n').filter((line) => /are gone|are lost|gave up/.test(line))
    return {
      resumed,
      grown: most - before,
      thrownOut: crowd.thrownOut(),
      longestStop: longestStop(delays),
      lost: lost.join('\n'),
      impaired: (await statusIn<{ impaired?: object }>(folder.path, 'swap-server')).impaired,
    }
  } finally {
    clearInterval(watching)
    crowd.end()
    wire.close()
  }
}

function startCrowd(port: number, peers: number) {
  const child = endWithProcess(
    spawn(process.execPath, [here('hostile-peers.mjs'), String(port), String(peers)], {
      stdio: ['pipe', 'pipe', 'inherit'],
    }),
  )
  let thrownOut = 0
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    thrownOut = Number(/thrownOut (\d+)\n$/.exec(text)?.[1] ?? thrownOut)
  })
  return { thrownOut: () => thrownOut, end: () => child.kill('SIGKILL') }
}

const qemuIo = (uri: string, command: string) => complete('qemu-io', ['-f', 'raw', '-c', command, uri])

function residentBytes(pid: number): number {
  return 1024 * Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
}

/** One line of what a soak prints. */
export function describeCrowd({ resumed, grown, thrownOut, longestStop: stop }: CrowdReport): string {
  const sorted = [...resumed].sort((a, b) => a - b)
  const at = (part: number) =>
    Math.round(sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0)
  return `resumed ${resumed.length} times, in ${at(0.5)} ms, p99 ${at(0.99)} ms, at most ${at(1)} ms; thrown out ${thrownOut} times; RSS grew by ${(grown / 2 ** 20).toFixed(1)} MiB; ${stop}`
}
