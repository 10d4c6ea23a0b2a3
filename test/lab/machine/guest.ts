import { existsSync, readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer, type Socket } from 'node:net'
import { constants } from 'node:os'
import { dirname, join } from 'node:path'
import { StringDecoder } from 'node:string_decoder'
import { before, DeadlineError, GuestDiedError } from '../base/errors.js'
import { LocalShell } from '../base/local-shell.js'
import { cache, top } from '../base/paths.js'
import { type Command, type CommandOptions, RunningProcess, Shell, tail, toArguments } from '../base/shell.js'
import { makeWorkFolder } from '../base/work-folder.js'
import { encodeFrame, encodeStart, type Frame, FrameReader, Kind } from './channel.js'
import { makeDisk } from './disk.js'
import type { LabParts } from './lab-parts.js'
import { qemuArguments, type Wire } from './qemu.js'

export interface GuestOptions {
  /** Host name in the guest. */
  name?: string
  /** 2048 by default; the machine gives it as it is used. */
  memoryMiB?: number
  /** 2 by default. */
  cpus?: number
  /** Size of a disk of its own, /dev/vda; none by default. */
  diskMiB?: number
  /** Ends of wires to other guests: eth0, eth1 and so on. */
  wires?: readonly Wire[]
  /** Process 1: the agent, by default, or systemd with the agent as a service of it. */
  init?: 'agent' | 'systemd'
  /** For the boot; 90 s by default, which leaves room for a busy machine. */
  deadlineMs?: number
}

const guestEnvironment = {
  HOME: '/root',
  // The host's own Node, wherever it lives.
  PATH: `${dirname(process.execPath)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`,
  LANG: 'C.UTF-8',
  RDMAKIT_CACHE: cache,
}

/** Long past what a boot takes: where it all comes from a cold disk, QEMU was seen to need more than 90 s. */
export const BOOT_MS = 300_000

/** A running guest: commands run in it as in any other shell. */
export class Guest extends Shell implements AsyncDisposable {
  /** Seconds from QEMU's start until the agent answered. */
  bootSeconds = 0
  readonly #processes = new Map<number, Remote>()
  #nextProcess = 1
  #socket: Socket | undefined
  #ready!: () => void
  readonly #booted = new Promise<void>((resolve) => {
    this.#ready = resolve
  })
  #lost: Error | undefined

  private constructor(
    override readonly name: string,
    private readonly qemu: RunningProcess,
    private readonly folder: string,
  ) {
    super()
    qemu.exited.then(
      (end) => this.#lose(`QEMU ended with ${end.status ?? `signal ${end.signal}`}\n${tail(end.stderr)}`),
      (error: Error) => this.#lose(error.message),
    )
  }

  static async boot(parts: LabParts, options: GuestOptions = {}): Promise<Guest> {
    const { name = 'guest', memoryMiB = 2048, cpus = 2, diskMiB, wires } = options
    const { init = 'agent', deadlineMs = BOOT_MS } = options
    const folder = await makeWorkFolder(name)
    const agentSocket = join(folder, 'agent.sock')
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(agentSocket, resolve))
    const start = performance.now()
    const qemu = new LocalShell().start(
      qemuArguments({
        accelerator: parts.accelerator,
        kernel: parts.kernel,
        initramfs: parts.initramfs,
        memoryMiB,
        cpus,
        environment: {
          lab_name: name,
          lab_top: top,
          lab_agent: parts.agent,
          lab_kernel: parts.kernel.root,
          lab_init: init,
        },
        console: `file:${join(folder, 'console.log')}`,
        agentSocket,
        ...(diskMiB !== undefined && { disk: await makeDisk(join(folder, 'disk.raw'), diskMiB) }),
        ...(wires && { wires }),
      }),
    )
    const guest = new Guest(name, qemu, folder)
    server.once('connection', (socket) => {
      server.close()
      guest.#attach(socket)
    })
    try {
      await before(deadlineMs, `booting ${name}`, guest.#booted)
      if (guest.#lost) throw guest.#lost
    } catch (error) {
      const console = guest.consoleTail()
      await guest.kill()
      server.close()
      if (error instanceof DeadlineError) throw new GuestDiedError(`${error.message}\n${console}`)
      throw error
    }
    guest.bootSeconds = (performance.now() - start) / 1000
    return guest
  }

  override start(command: Command, options: CommandOptions = {}): RunningProcess {
    const id = this.#nextProcess++
    const control = {
      signal: (name: NodeJS.Signals, wholeGroup: boolean): void =>
        this.#send(id, Kind.signal, Buffer.from([constants.signals[name], wholeGroup ? 1 : 0])),
    }
    const running = new RunningProcess(command, control, options.onOutput)
    if (this.#lost) {
      running.receiveEnd(this.#lost)
      return running
    }
    this.#processes.set(id, {
      running,
      decoders: { stdout: new StringDecoder('utf8'), stderr: new StringDecoder('utf8') },
    })
    const environment = { ...guestEnvironment, ...options.env }
    this.#send(id, Kind.start, encodeStart(options.cwd ?? top, environment, toArguments(command)))
    return running
  }

  /** The end of the guest's console: what its kernel had to say. */
  consoleTail(): string {
    const file = join(this.folder, 'console.log')
    return existsSync(file) ? tail(readFileSync(file, 'utf8')) : ''
  }

  /** Nothing runs in it any more. */
  get isOff(): boolean {
    return this.#lost !== undefined
  }

  /** Waits until the guest has switched itself off. */
  async off(deadlineMs: number): Promise<void> {
    await before(deadlineMs, `${this.name} switches itself off`, this.qemu.exited)
  }

  /** Switches the guest off; kills it when it does not obey. */
  async powerOff(deadlineMs = 5_000): Promise<void> {
    this.#send(0, Kind.powerOff)
    await before(deadlineMs, `powering ${this.name} off`, this.qemu.exited).catch(() => {})
    await this.kill()
  }

  /** Ends the guest as a power cut would. Twice is fine. */
  async kill(): Promise<void> {
    this.qemu.signal('SIGKILL')
    await this.qemu.exited.catch(() => {})
    this.#socket?.destroy()
    await rm(this.folder, { recursive: true, force: true })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.powerOff()
  }

  #attach(socket: Socket): void {
    this.#socket = socket
    const reader = new FrameReader()
    socket.on('data', (bytes: Buffer) => {
      for (const frame of reader.read(bytes)) this.#receive(frame)
    })
    socket.on('error', () => {}) // QEMU's end is the event that counts.
  }

  #send(process: number, kind: number, payload?: Buffer): void {
    if (!this.#lost) this.#socket?.write(encodeFrame(process, kind, payload))
  }

  #receive({ process, kind, payload }: Frame): void {
    if (kind === Kind.ready) this.#ready()
    const remote = this.#processes.get(process)
    if (!remote) return
    if (kind === Kind.stdout || kind === Kind.stderr) {
      const stream = kind === Kind.stdout ? 'stdout' : 'stderr'
      remote.running.receiveOutput(stream, remote.decoders[stream].write(payload))
    } else if (kind === Kind.exit) {
      const signal = payload.readUInt8(1)
      this.#processes.delete(process)
      remote.running.receiveEnd(
        signal === 0 ? { status: payload.readUInt8(0), signal: null } : { status: null, signal },
      )
    }
  }

  #lose(reason: string): void {
    this.#lost = new GuestDiedError(`${this.name}: ${reason}\n${this.consoleTail()}`)
    for (const { running } of this.#processes.values()) running.receiveEnd(this.#lost)
    this.#processes.clear()
    this.#ready()
  }
}

interface Remote {
  running: RunningProcess
  decoders: { stdout: StringDecoder; stderr: StringDecoder }
}
