import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { SwapServer } from '@rdmakit/swap-server'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { MIB, READ, WRITE } from './fixture.js'

const PAGE = 4096
const SIZE = 4 * MIB
const PAGES = SIZE / PAGE
const LANES = 2
const OPEN_WRITES = 16
const PROGRAM = fileURLToPath(new URL('volume-process.mjs', import.meta.url))

let state: string
let processes: ChildProcess[]
let servers: { server: SwapServer; uri: string }[]
let sockets = 0

beforeEach(() => {
  state = mkdtempSync(join(tmpdir(), 'nbd-restart-'))
  processes = []
  servers = []
})

afterEach(async () => {
  for (const process of processes) process.kill('SIGKILL')
  await Promise.all(servers.map(({ server }) => server.close()))
  rmSync(state, { recursive: true, force: true })
})

async function serve(uri: string): Promise<void> {
  const server = new SwapServer({ memory: 16 * MIB, slabSize: MIB })
  servers.push({ server, uri: await server.listen(uri) })
}

/** The kernel's part: sockets to the process, and requests that are not over before they are answered. */
class VolumeProcess {
  readonly process: ChildProcess
  readonly #sockets: Socket[]
  readonly #waiting = new Map<bigint, { length: number; done: (answer: Answer | undefined) => void }>()
  #output = ''
  #cookie = 0n
  #wake = () => {}

  constructor(replicas: number, backup?: { file: string }) {
    const uris = servers.map(({ uri }) => [uri])
    const given = { state, servers: uris, size: SIZE, lanes: LANES, replicas, backup }
    this.process = spawn(process.execPath, [PROGRAM, JSON.stringify(given)], {
      stdio: ['ignore', 'pipe', 'inherit', 'pipe', 'pipe'],
    })
    processes.push(this.process)
    this.process.stdout?.on('data', (bytes: Buffer) => {
      this.#output += bytes
      this.#wake()
    })
    this.#sockets = this.process.stdio.slice(3, 3 + LANES) as Socket[]
    for (const socket of this.#sockets) this.#receive(socket)
  }

  /** @returns what it said before it was ready */
  ready(): Promise<string> {
    return this.said(/^ready$/m)
  }

  async said(line: RegExp): Promise<string> {
    while (!line.test(this.#output)) {
      if (this.process.exitCode !== null) throw new Error(`it ended with ${this.process.exitCode}`)
      await new Promise<void>((resolve) => {
        this.#wake = resolve
        this.process.once('exit', resolve)
      })
    }
    return this.#output
  }

  async end(signal: NodeJS.Signals): Promise<number | null> {
    const ended = new Promise<void>((resolve) => this.process.once('exit', () => resolve()))
    this.process.kill(signal)
    await ended
    return this.process.exitCode
  }

  /** @returns undefined: never answered */
  request(command: number, page: number, payload?: Buffer): Promise<Answer | undefined> {
    const cookie = ++this.#cookie
    const header = Buffer.alloc(28)
    header.writeUInt32BE(0x25609513, 0)
    header.writeUInt16BE(command, 6)
    header.writeBigUInt64BE(cookie, 8)
    header.writeBigUInt64BE(BigInt(page * PAGE), 16)
    header.writeUInt32BE(PAGE, 24)
    return new Promise((done) => {
      this.#waiting.set(cookie, { length: command === READ ? PAGE : 0, done })
      const socket = this.#sockets[page % LANES] as Socket
      socket.write(payload === undefined ? header : Buffer.concat([header, payload]))
    })
  }

  #receive(socket: Socket): void {
    let received: Buffer = Buffer.alloc(0)
    socket.on('data', (bytes) => {
      received = Buffer.concat([received, bytes])
      for (;;) {
        if (received.length < 16) return
        const error = received.readUInt32BE(4)
        const cookie = received.readBigUInt64BE(8)
        const waiting = this.#waiting.get(cookie)
        if (waiting === undefined) throw new Error('an answer to no request')
        const length = error === 0 ? waiting.length : 0
        if (received.length < 16 + length) return
        this.#waiting.delete(cookie)
        waiting.done({ error, data: received.subarray(16, 16 + length) })
        received = received.subarray(16 + length)
      }
    })
    socket.on('error', () => {})
    socket.on('close', () => {
      for (const { done } of this.#waiting.values()) done(undefined)
      this.#waiting.clear()
    })
  }
}

interface Answer {
  readonly error: number
  readonly data: Buffer
}

const contents = (page: number, version: number) => Buffer.alloc(PAGE, `${page}:${version};`)

/** Writes pages in random order, many at a time, and knows what each must hold. */
class Workload {
  readonly versions = new Array<number>(PAGES).fill(0)
  written = 0
  readonly #open = new Set<number>()
  #stopping = false

  /** Until `stop`, or until the process dies. */
  async run(volume: VolumeProcess): Promise<void> {
    this.#stopping = false
    await Promise.all(Array.from({ length: OPEN_WRITES }, () => this.#write(volume)))
  }

  stop(): void {
    this.#stopping = true
  }

  /** As the kernel: what was never answered goes out again. */
  async repeat(volume: VolumeProcess): Promise<void> {
    for (const page of this.#open) await this.#send(volume, page)
    this.#open.clear()
  }

  async verify(volume: VolumeProcess): Promise<number> {
    let wrong = 0
    for (let page = 0; page < PAGES; page++) {
      const answer = await volume.request(READ, page)
      const version = this.versions[page] as number
      const wanted = version === 0 ? Buffer.alloc(PAGE) : contents(page, version)
      if (answer?.error !== 0 || !wanted.equals(answer.data)) wrong++
    }
    return wrong
  }

  async #write(volume: VolumeProcess): Promise<void> {
    while (!this.#stopping) {
      const page = Math.floor(Math.random() * PAGES)
      if (this.#open.has(page)) continue
      this.#open.add(page)
      ;(this.versions[page] as number)++
      if (!(await this.#send(volume, page))) return
      this.#open.delete(page)
      this.written++
    }
  }

  async #send(volume: VolumeProcess, page: number): Promise<boolean> {
    const answer = await volume.request(WRITE, page, contents(page, this.versions[page] as number))
    if (answer !== undefined && answer.error !== 0) throw new Error(`page ${page}: error ${answer.error}`)
    return answer !== undefined
  }
}

async function eventually(condition: () => boolean): Promise<void> {
  const deadline = Date.now() + 15_000
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`still not ${condition}`)
    await new Promise((resolve) => setImmediate(resolve))
  }
}

const ADDRESSES = {
  iwarp: () => 'iwarp://127.0.0.1:0',
  shm: () => `shm:///tmp/rdmakit-restart-${process.pid}-${++sockets}.sock`,
}

describe.each(Object.entries(ADDRESSES))(
  'a process killed in the middle of writes, over %s',
  (_, address) => {
    it.each([1, 2])(
      'is followed by others without a wrong page, with %i replicas',
      async (replicas) => {
        for (let i = 0; i < replicas; i++) await serve(address())
        const workload = new Workload()
        let volume = new VolumeProcess(replicas)
        await volume.ready()
        for (const file of ['volume.json', 'slabs.map', 'pages.map', 'lock'])
          expect(statSync(join(state, file)).mode & 0o777).toBe(0o600)
        for (let round = 1; round <= 3; round++) {
          const running = workload.run(volume)
          await eventually(() => workload.written > round * 300)
          await volume.end('SIGKILL')
          await running
          volume = new VolumeProcess(replicas)
          expect(await volume.ready()).toMatch(/^degraded 0 lost 0$/m)
          await workload.repeat(volume)
          expect(await workload.verify(volume)).toBe(0)
        }
        expect(await volume.end('SIGTERM')).toBe(0)
        expect(existsSync(join(state, 'volume.json'))).toBe(false)
        for (const { server } of servers) expect(server.store.free).toBe(16)
      },
      60_000,
    )
  },
)

describe.each(Object.entries(ADDRESSES))('with a backup, a process killed over %s', (_, address) => {
  /** A volume on one server, with --ack backup, whose process died in the middle of writes. */
  async function killed() {
    await serve(address())
    const backup = { file: join(state, 'backup') }
    const workload = new Workload()
    const volume = new VolumeProcess(1, backup)
    await volume.ready()
    const running = workload.run(volume)
    await eventually(() => workload.written > 500)
    await volume.end('SIGKILL')
    await running
    return { workload, backup }
  }

  it('together with its only server loses nothing, and goes on when the server comes back', async () => {
    const { workload, backup } = await killed()
    const gone = servers[0] as (typeof servers)[number]
    await gone.server.close()
    const volume = new VolumeProcess(1, backup)
    expect(await volume.ready()).toMatch(/^degraded 0 lost 0\nbacked up 4$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
    await serve(gone.uri)
    const running = workload.run(volume)
    await volume.said(/^refilled$/m)
    workload.stop()
    await running
    expect(await workload.verify(volume)).toBe(0)
  }, 60_000)

  it('finds its server again, and believes no backup that a process without it has outdated', async () => {
    const { workload, backup } = await killed()
    let volume = new VolumeProcess(1, backup)
    expect(await volume.ready()).toMatch(/^degraded 0 lost 0\nbacked up 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
    await volume.end('SIGKILL')
    expect(statSync(join(state, 'backup.map')).mode & 0o777).toBe(0o600)
    volume = new VolumeProcess(1)
    await volume.ready()
    await volume.end('SIGKILL')
    expect(existsSync(join(state, 'backup.map'))).toBe(false)
  }, 60_000)
})

describe('a successor', () => {
  beforeEach(async () => {
    for (let i = 0; i < 2; i++) await serve(ADDRESSES.shm())
  })

  /** A volume that was written all over and whose process is dead. */
  async function killed(replicas: number, before: (volume: VolumeProcess) => Promise<void> = async () => {}) {
    const workload = new Workload()
    const volume = new VolumeProcess(replicas)
    await volume.ready()
    const running = workload.run(volume)
    await eventually(() => workload.written > 500)
    await before(volume)
    const written = workload.written
    await eventually(() => workload.written > written + 300)
    await volume.end('SIGKILL')
    await running
    return workload
  }

  it('goes on without a server that died together with the process', async () => {
    const workload = await killed(2)
    await servers[0]?.server.close()
    const volume = new VolumeProcess(2)
    expect(await volume.ready()).toMatch(/^degraded 4 lost 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
  })

  it('does not trust a server that had failed and missed writes, though it still has the session', async () => {
    const workload = await killed(2, async (volume) => {
      volume.process.kill('SIGUSR2')
      await volume.said(/^failed$/m)
    })
    expect(servers[1]?.server.store.free).toBeLessThan(16)
    const volume = new VolumeProcess(2)
    expect(await volume.ready()).toMatch(/^degraded 4 lost 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
  })

  it('does not take a server that was started anew for the one that had the data', async () => {
    const gone = servers[1] as (typeof servers)[number]
    const workload = await killed(2, async () => {
      await gone.server.close()
    })
    await serve(gone.uri)
    const volume = new VolumeProcess(2)
    expect(await volume.ready()).toMatch(/^degraded 4 lost 0$/m)
    await workload.repeat(volume)
    expect(await workload.verify(volume)).toBe(0)
  })

  it('says what is lost when the only copy is gone, and serves the rest', async () => {
    await killed(1)
    const held = 16 - (servers[0]?.server.store.free ?? 0)
    await servers[0]?.server.close()
    const ended = servers[0]?.uri as string
    await serve(ended)
    const volume = new VolumeProcess(1)
    expect(await volume.ready()).toContain(`degraded 0 lost ${held}`)
    let errors = 0
    for (let page = 0; page < PAGES; page++) {
      const answer = await volume.request(READ, page)
      if (answer?.error !== 0) errors++
    }
    if (held > 0) expect(errors).toBeGreaterThan(0)
    expect(errors).toBeLessThanOrEqual(held * (MIB / PAGE))
  })

  it('gives back what no slab uses', async () => {
    await killed(2)
    // Spare slabs: allocated, and on no record.
    const volume = new VolumeProcess(2)
    await volume.ready()
    await eventually(() => servers.every(({ server }) => server.store.free === 16 - 4 - 1))
  })

  it('cannot be two', async () => {
    const first = new VolumeProcess(2)
    await first.ready()
    const second = new VolumeProcess(2)
    await expect(second.ready()).rejects.toThrow('it ended with 1')
  })
})
