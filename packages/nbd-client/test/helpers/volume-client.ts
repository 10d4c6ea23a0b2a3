import { type ChildProcess, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { onTestFinished } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { ForeignProcess } from '../../../../test/foreign-process.js'
import { MIB, READ, WRITE } from './fixture.js'
import { VOLUME_PROGRAM } from './volume-program.js'

export { temporaryFolder } from './temporary-folder.js'
export { eventually }

const PAGE = 4096
const SIZE = 4 * MIB
export const PAGES = SIZE / PAGE
const LANES = 2
const OPEN_WRITES = 16
/** Pages that are read at once when all are verified. */
const VERIFY_PAGES = 16
/** Ends what hangs. */
const PATIENCE_MS = 50_000
/** A process whose connections have ended may end after them. */
const ACCOUNT_MS = 5_000

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
  readonly #listeners = new Set<() => void>()

  constructor({ servers, ...place }: VolumePlace, environment: NodeJS.ProcessEnv = {}) {
    const given = { ...place, servers: servers.map((uri) => [uri]), size: SIZE, lanes: LANES }
    this.process = spawn(process.execPath, [VOLUME_PROGRAM, JSON.stringify(given)], {
      stdio: ['ignore', 'pipe', 'inherit', 'pipe', 'pipe'],
      env: { ...process.env, ...environment },
    })
    this.process.stdout?.on('data', (bytes: Buffer) => {
      this.output += bytes
      for (const listener of this.#listeners) listener()
    })
    this.#sockets = this.process.stdio.slice(3, 3 + LANES) as Socket[]
    for (const socket of this.#sockets) this.#receive(socket)
  }

  /** @returns what it said before it was ready */
  ready(): Promise<string> {
    return this.said(/^ready$/m)
  }

  /** @returns all that it has said when it has said that @throws Error: it ended */
  async said(line: RegExp): Promise<string> {
    const { process: child } = this
    await this.#until(
      () => line.test(this.output) || child.exitCode !== null || child.signalCode !== null,
      line,
    )
    if (!line.test(this.output)) throw new Error(`it ended with ${this.process.exitCode}`)
    return this.output
  }

  /** Output of it or of a successor from the position `from` on, whichever of them ends. */
  async heard(line: RegExp, from: number): Promise<RegExpExecArray> {
    await this.#until(() => line.test(this.output.slice(from)), line)
    return line.exec(this.output.slice(from)) as RegExpExecArray
  }

  /** Resolves with what is printed, or an end, that fulfils the condition. */
  async #until(condition: () => boolean, line: RegExp): Promise<void> {
    if (condition()) return
    let timer: NodeJS.Timeout | undefined
    let listener = () => {}
    try {
      await new Promise<void>((resolve, reject) => {
        listener = () => {
          if (condition()) resolve()
        }
        this.#listeners.add(listener)
        this.process.once('exit', listener)
        const late = () => reject(new Error(`it never said ${line}: ${this.output}`))
        timer = setTimeout(late, PATIENCE_MS)
      })
    } finally {
      clearTimeout(timer)
      this.#listeners.delete(listener)
      this.process.off('exit', listener)
    }
  }

  /** Of a process whose connection ended although nobody asked for that. @returns its end, if it ended, and its output */
  async account(): Promise<string> {
    const { process: child } = this
    await eventually(() => child.exitCode !== null || child.signalCode !== null, ACCOUNT_MS).catch(() => {})
    const end = child.signalCode ?? child.exitCode
    return `${end === null ? 'it still runs' : `it ended with ${end}`}: ${this.output}`
  }

  async end(signal: NodeJS.Signals): Promise<number | null> {
    const ended = new Promise<void>((resolve) => this.process.once('exit', () => resolve()))
    this.process.kill(signal)
    await ended
    return this.process.exitCode
  }

  /** @param pages of a READ, which begins at a multiple of that; else one @returns undefined: never answered */
  request(command: number, page: number, payload?: Buffer, pages = 1): Promise<Answer | undefined> {
    const cookie = ++this.#cookie
    const header = Buffer.alloc(28)
    header.writeUInt32BE(0x25609513, 0)
    header.writeUInt16BE(command, 6)
    header.writeBigUInt64BE(cookie, 8)
    header.writeBigUInt64BE(BigInt(page * PAGE), 16)
    header.writeUInt32BE(pages * PAGE, 24)
    return new Promise((done) => {
      this.#waiting.set(cookie, { length: command === READ ? pages * PAGE : 0, done })
      const socket = this.#sockets[(page / pages) % LANES] as Socket
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
    socket.on('error', ({ message }) => {
      this.output += `the socket to it: ${message}\n`
    })
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
  // By its object: another process may have its number by then.
  onTestFinished(() => void volume.process.kill('SIGKILL'))
  return volume
}

/** Lets the process `pid`, `volume`'s or a successor's, start its successor. The next SIGHUP lets it hand over. */
export async function prepare(volume: VolumeProcess, pid: number): Promise<void> {
  const from = volume.output.length
  process.kill(pid, 'SIGHUP')
  await volume.heard(/^prepared$/m, from)
}

/** Of a successor. @returns `pid` */
export function endWithTest(pid: number): number {
  const successor = new ForeignProcess(pid)
  onTestFinished(() => successor.kill())
  return pid
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

  /** Like the kernel: sends unanswered requests again. */
  async repeat(volume: VolumeProcess): Promise<void> {
    for (const page of this.#open) await this.#send(volume, page)
    this.#open.clear()
  }

  /** @returns how many pages are not what was written */
  async verify(volume: VolumeProcess): Promise<number> {
    const runs = Array.from({ length: PAGES / VERIFY_PAGES }, (_, run) => run * VERIFY_PAGES)
    const answers = await Promise.all(runs.map((page) => volume.request(READ, page, undefined, VERIFY_PAGES)))
    let wrong = 0
    for (const [page, version] of this.versions.entries()) {
      const { error, data } = answers[Math.floor(page / VERIFY_PAGES)] ?? {}
      const at = (page % VERIFY_PAGES) * PAGE
      const wanted = version === 0 ? Buffer.alloc(PAGE) : contents(page, version)
      if (error !== 0 || data?.subarray(at, at + PAGE).equals(wanted) !== true) wrong++
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
