// A thousand hostile connections at once: half-open handshakes, slow senders and garbage, each coming back when
// it is thrown out. A good client neither loses its connection nor its pace, and a new one gets in.
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { must, type Program, startServe, startServer, temporaryFolder } from './processes.js'

const ATTACKERS = 1000
const ROUNDS = 8
const CLIENT_FLAGS = Buffer.from([0, 0, 0, 3])

const folder = temporaryFolder()
const programs: Program[] = []
let socket: string
let uri: string
let client: Program

beforeAll(async () => {
  const { program: server, uri: swap } = await startServer(['--memory', '128M'])
  const serving = await startServe(swap, '64M', folder.path)
  client = serving.program
  programs.push(client, server)
  socket = serving.socket
  uri = serving.uri
})

afterAll(async () => {
  for (const program of programs) await program.stop()
  folder[Symbol.dispose]()
})

/** p99 of 4 KiB reads at depth 1 by fio, in a process of its own; ns. It connects anew, as any client. */
function p99(seconds: number): Promise<number> {
  const child = spawn(
    'fio',
    [
      ...['--name=good', '--ioengine=nbd', `--uri=${uri}`, '--rw=randread', '--bs=4k', '--iodepth=1'],
      ...['--size=32m', '--time_based', `--runtime=${seconds}`, '--output-format=json'],
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  )
  let out = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    out += text
  })
  return new Promise((resolve, reject) => {
    child.once('close', (status) => {
      if (status !== 0) return reject(new Error(`fio ended with ${status}\n${out}`))
      const [job] = JSON.parse(out.slice(out.indexOf('{'))).jobs
      resolve(job.read.clat_ns.percentile['99.000000'])
    })
  })
}

/** Keeps `ATTACKERS` connections up. @returns how many are connected, and what ends them all */
function attack() {
  let over = false
  const sockets = new Set<Socket>()
  const timers = new Set<NodeJS.Timeout>()
  const later = (ms: number, what: () => void) => {
    const timer = setTimeout(() => {
      timers.delete(timer)
      what()
    }, ms)
    timers.add(timer)
  }
  const one = (kind: number) => {
    if (over) return
    const attacker = connect(socket)
    attacker.on('error', () => {}) // being thrown out is the point
    attacker.on('data', () => {})
    attacker.on('connect', () => {
      sockets.add(attacker)
      if (kind === 0) return // silence
      if (kind === 1) attacker.write(Buffer.concat([CLIENT_FLAGS, Buffer.from('IHAVE')])) // half a header
      if (kind === 2) attacker.write(Buffer.from(Array.from({ length: 200 }, (_, i) => (i * 7919) & 0xff)))
      if (kind === 3) drip(attacker, 0)
    })
    attacker.on('close', () => {
      sockets.delete(attacker)
      later(2000, () => one(kind))
    })
  }
  /** A valid handshake at a byte in 100 ms: it would take two seconds for one option. */
  const drip = (attacker: Socket, at: number) => {
    const talk = Buffer.concat([CLIENT_FLAGS, Buffer.from('IHAVEOPT'), Buffer.from([0, 0, 0, 3, 0, 0, 0, 0])])
    if (over || attacker.destroyed) return
    attacker.write(talk.subarray(at % talk.length, (at % talk.length) + 1))
    later(100, () => drip(attacker, at + 1))
  }
  for (let i = 0; i < ATTACKERS; i++) one(i % 10 < 5 ? 0 : i % 10 < 8 ? 1 : i % 10 === 8 ? 2 : 3)
  return {
    connected: () => sockets.size,
    stop: async () => {
      over = true
      for (const timer of timers) clearTimeout(timer)
      await Promise.all(
        [...sockets].map(
          (each) =>
            new Promise<void>((resolve) => {
              each.once('close', () => resolve())
              each.destroy()
            }),
        ),
      )
    },
  }
}

const proc = (name: string) => `/proc/${client.process.pid}/${name}`
const residentKib = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(proc('status'), 'utf8'))?.[1])

it('a thousand hostile connections at most double a good one’s p99, and keep no new one out', async () => {
  must('qemu-io', ['-f', 'raw', '-c', 'write -P 1 0 32M', uri])
  await p99(1) // warm
  const ratios: number[] = []
  const resident = residentKib()
  for (let round = 0; round < ROUNDS && !ratios.some((ratio) => ratio <= 2); round++) {
    const before = await p99(2)
    const attackers = attack()
    try {
      const during = await p99(3)
      expect(attackers.connected()).toBeGreaterThan(100)
      // The server keeps 256 handshakes, its lanes and its own descriptors.
      expect(readdirSync(proc('fd')).length).toBeLessThan(500)
      must('nbdinfo', ['--size', uri], 5_000)
      ratios.push(during / before)
      console.log(
        `p99 ${Math.round(before / 1000)} us before, ${Math.round(during / 1000)} us during the attack`,
      )
    } finally {
      await attackers.stop()
    }
  }
  expect(Math.min(...ratios)).toBeLessThanOrEqual(2)
  expect(residentKib() - resident).toBeLessThan(64 * 1024)
}, 120_000)
