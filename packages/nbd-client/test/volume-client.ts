import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import { MIB, READ, WRITE } from './fixture.js'

export { eventually } from '../../../test/eventually.js'

const PAGE = 4096
const SIZE = 4 * MIB
export const PAGES = SIZE / PAGE
const LANES = 2
const OPEN_WRITES = 16
const PROGRAM = fileURLToPath(new URL('volume-process.mjs', import.meta.url))

export interface VolumePlace {
  /** folder */
  readonly state: string
  /** addresses */
  readonly servers: readonly string[]
  readonly replicas: number
  readonly thin?: boolean
  readonly backup?: { readonly file: string } | undefined
  readonly compress?: 'none' | 'lz4' | 'lz4-always' | undefined
}

/** The kernel's part: sockets to the process, and requests that are not over before they are answered. */
export class VolumeProcess {
  readonly process: ChildProcess
  readonly #sockets: Socket[]
  readonly #waiting = new Map<bigint, { length: number; done: (answer: Answer | undefined) => void }>()
  output = ''
  /** a connection has ended */
  closed = false
  #cookie = 0n
  #wake = () => {}

  constructor({ servers, ...place }: VolumePlace, environment: NodeJS.ProcessEnv = {}) {
    const given = { ...place, servers: servers.map((uri) => [uri]), size: SIZE, lanes: LANES }
    this.process = spawn(process.execPath, [PROGRAM, JSON.stringify(given)], {
      stdio: ['ignore', 'pipe', 'inherit', 'pipe', 'pipe'],
      env: { ...process.env, ...environment },
    })
    this.process.stdout?.on('data', (bytes: Buffer) => {
      this.output += bytes
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
    while (!line.test(this.output)) {
      if (this.process.exitCode !== null) throw new Error(`it ended with ${this.process.exitCode}`)
      await new Promise<void>((resolve) => {
        this.#wake = resolve
        this.process.once('exit', resolve)
      })
    }
    return this.output
  }

  /** What it or a successor of it says from the position `from` on, whoever of them ends. */
  async heard(line: RegExp, from: number, timeout = 15_000): Promise<RegExpExecArray> {
    const deadline = Date.now() + timeout
    for (;;) {
      const match = line.exec(this.output.slice(from))
      if (match !== null) return match
      if (Date.now() > deadline) throw new Error(`it never said ${line}: ${this.output.slice(from)}`)
      await new Promise((resolve) => setImmediate(resolve))
    }
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
      this.closed = true
      for (const { done } of this.#waiting.values()) done(undefined)
      this.#waiting.clear()
    })
  }
}

/** A volume in a process that ends with the test, if it has not before. */
export function startVolume(place: VolumePlace, environment?: NodeJS.ProcessEnv): VolumeProcess {
  const volume = new VolumeProcess(place, environment)
  endWithTest(volume.process.pid as number)
  return volume
}

/** Of a successor. @returns `pid` */
export function endWithTest(pid: number): number {
  onTestFinished(() => {
    try {
      process.kill(pid, 'SIGKILL')
    } catch {
      // It has ended.
    }
  })
  return pid
}

/** A folder that goes with the test. */
export function temporaryFolder(): string {
  const path = mkdtempSync(join(tmpdir(), 'nbd-volume-'))
  onTestFinished(() => rmSync(path, { recursive: true, force: true }))
  return path
}

export interface Answer {
  readonly error: number
  readonly data: Buffer
}

const contents = (page: number, version: number) => Buffer.alloc(PAGE, `${page}:${version};`)

/** Writes pages in random order, many at a time, and knows what each must hold. */
export class Workload {
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
