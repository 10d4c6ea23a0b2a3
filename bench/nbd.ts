// fio 4 KiB random reads and writes over a Unix socket: nbd-client with its swap-server over iwarp:// on
// loopback, beside nbdkit's memory plugin. The two run in turn, so that the machine's drift hits both.
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Child } from './child.js'
import { median, printTable } from './table.js'

const ROUNDS = 3
const SECONDS = 4
const SIZE = '256M'

const cli = (name: string) => fileURLToPath(new URL(`../../packages/${name}/dist/cli.js`, import.meta.url))

function iops(uri: string, rw: 'randread' | 'randwrite', depth: number, seconds: number): number {
  const out = execFileSync(
    'fio',
    [
      '--name=bench',
      '--ioengine=nbd',
      `--uri=${uri}`,
      `--rw=${rw}`,
      '--bs=4k',
      `--iodepth=${depth}`,
      `--size=${SIZE}`,
      '--time_based',
      `--runtime=${seconds}`,
      '--output-format=json',
    ],
    { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] },
  )
  const [job] = JSON.parse(out.slice(out.indexOf('{'))).jobs
  return rw === 'randread' ? job.read.iops : job.write.iops
}

export async function nbd(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-bench-'))
  try {
    await using server = new Child(process.execPath, [
      cli('swap-server'),
      '--listen',
      'iwarp://127.0.0.1:0',
      '--memory',
      SIZE,
    ])
    const [, uri] = await server.prints(/^listening (\S+)$/m)
    const socket = join(folder, 'ours.sock')
    await using client = new Child(
      process.execPath,
      [cli('nbd-client'), 'serve', '--server', uri as string, '--size', SIZE, '--unix', socket],
      { RDMAKIT_RUN: folder },
    )
    const [, ours] = await client.prints(/^ready (\S+)$/m)
    const peerSocket = join(folder, 'nbdkit.sock')
    // Its pid file comes when its socket is there.
    const pidFile = join(folder, 'nbdkit.pid')
    await using peer = new Child('nbdkit', ['-f', '-P', pidFile, '-U', peerSocket, 'memory', SIZE])
    await peer.leaves(pidFile)
    const theirs = `nbd+unix:///?socket=${peerSocket}`
    // Written once: a page never written is answered without network, which would flatter us.
    const random = join(folder, 'random')
    for (let i = 0; i < 256; i++) writeFileSync(random, randomBytes(2 ** 20), { flag: 'a' })
    for (const target of [ours as string, theirs]) execFileSync('nbdcopy', [random, target])
    const rows = []
    for (const rw of ['randread', 'randwrite'] as const)
      for (const depth of [1, 32]) {
        const samples: { ours: number; theirs: number }[] = []
        for (let round = 0; round < ROUNDS; round++)
          samples.push({
            ours: iops(ours as string, rw, depth, SECONDS),
            theirs: iops(theirs, rw, depth, SECONDS),
          })
        rows.push([
          `${rw} depth ${depth}`,
          median(samples.map((sample) => sample.ours)),
          median(samples.map((sample) => sample.theirs)),
          median(samples.map((sample) => sample.ours / sample.theirs)),
        ])
      }
    console.log(`\nfio 4 KiB over a Unix socket, IOPS, median of ${ROUNDS} rounds of ${SECONDS} s`)
    printTable(['workload', 'nbd-client over iwarp', 'nbdkit memory', 'ratio'], rows)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
