import {
  type ControlSocket,
  ExitError,
  type MetricsEndpoint,
  TERMINATION_SIGNALS,
} from '@rdmakit/operator-kit'
import { FencedError } from '@rdmakit/remote-volume'
import { notifyMainProcess, notifyReady } from '@rdmakit/swap-server/internal'
import { deferred } from '@rdmakit/verbs/internal'
import type { Volume } from '../engine/block-volume.js'
import { type DeviceIdentity, presenceOf } from '../kernel/device-identity.js'
import { blockName, devicePath } from '../kernel/device-name.js'
import { describeUses, partitionsOf, usesOf } from '../kernel/device-uses.js'
import { protectProcess } from '../kernel/kernel.js'
import { keepLanesNear } from '../kernel/lane-processors.js'
import { allowLargeRequests } from '../kernel/largest-request.js'
import { settleUdev } from '../kernel/settle-udev.js'
import { isSwap, swapOn } from '../kernel/swap.js'
import { ublkDevice } from '../kernel/ublk-device.js'
import { type ClientStatus, openControlSocket, type Upgraded } from '../report/control.js'
import { holdsNoPages, holdsPages } from '../report/last-resort.js'
import { serveMetrics } from '../report/metrics.js'
import { say, statusOf } from '../report/session-log.js'
import { type HandOverOutcome, handOver } from '../upgrade/hand-over.js'
import type { StateFolder } from '../upgrade/state-folder.js'
import { ownCommand, Successor } from '../upgrade/successor.js'
import type { KeptDevice } from '../upgrade/volume-json.js'
import type { AttachOptions } from './attach.js'
import { type DeviceLink, deviceTimeouts, KernelLink, UblkLink } from './device-link.js'
import { type Release, release } from './device-release.js'
import { disconnect, pull } from './disconnect.js'

/** Above the engine's own deadlines: a READ may have to try each replica, and the backup's file. */
const ANSWER_SLACK_MS = 6_000
const BACKUP_SLACK_MS = 10_000
/** It may have to wait until the kernel lets go of this process: longer than it does itself (ublk-device.ts). */
const UBLK_SERVE_MS = 35_000
/** The answer to whoever asked for the upgrade is on its way. */
const FAREWELL_MS = 2_000

/** What lets a device outlive its process. */
export interface Succession {
  readonly folder: StateFolder
  readonly device: KeptDevice
  /** the volume that the folder keeps; {@link Volume.start} is the caller's */
  takeUp(): Promise<Volume>
}

type Retaken = Extract<HandOverOutcome, { over: false }>

/** How it ended here; `left`: another process goes on with the device, or will. */
interface End {
  readonly status: number
  readonly left: boolean
}

/**
 * A device that the kernel has, from its start to its orderly end, or until another process goes on with it, or somebody
 * else ends it. Nothing is done to what has its number by then.
 */
export class AttachedDevice {
  readonly #options: AttachOptions
  readonly #device: DeviceIdentity
  readonly #path: string
  readonly #succession: Succession | undefined
  /** from another process */
  readonly #taken: boolean
  #volume: Volume
  #link: DeviceLink | undefined
  #control: ControlSocket | undefined
  #metrics: MetricsEndpoint | undefined
  /** goes on with the device */
  #successor: Successor | undefined
  /** what a hand-over under way comes to */
  #handingOver: Promise<Upgraded> | undefined
  #lastStatus: ClientStatus | undefined
  readonly #forced = new AbortController()
  /** see {@link Holder.stirred} */
  #stir = () => {}
  #end!: (end: End) => void
  readonly #ending = new Promise<End>((resolve) => {
    this.#end = resolve
  })
  /** settles when another process has the volume */
  readonly #fenced = deferred<void>()

  /** @param of default: a new link; `taken`: the device is one that another process had */
  constructor(
    volume: Volume,
    device: DeviceIdentity,
    options: AttachOptions,
    succession: Succession | undefined,
    of?: { readonly link: DeviceLink; readonly taken: boolean },
  ) {
    this.#volume = volume
    this.#device = device
    this.#path = devicePath(device)
    this.#options = options
    this.#succession = succession
    this.#taken = of?.taken ?? false
    this.#takeLink(of?.link ?? newLink(volume, device, options, succession !== undefined))
  }

  #takeLink(link: DeviceLink): void {
    this.#link = link
    link.failed = (failure) => this.#leave(failure)
    link.gone = (what) => {
      say(what)
      this.#end({ status: 1, left: false })
      this.#stir()
    }
  }

  /** Ends the device, unless it was handed over: then it leaves everything. @returns the process's exit status */
  async hold(): Promise<number> {
    const { swap } = this.#options
    let left = false
    holdsPages(this.#succession !== undefined)
    let released: Release = 'free'
    const stir = () => this.#stir()
    for (const name of TERMINATION_SIGNALS) process.on(name, stir)
    try {
      // Before the swap: what may fail, and is not needed, must not end it.
      await this.#openMetrics()
      // A device that was taken over has it, and its requests may be waiting.
      if (!this.#taken && this.#device.front === 'nbd') allowLargeRequests(this.#device.index)
      this.#placeLanes()
      if (swap && !isSwap(this.#path)) await this.#unlessUsed(this.#makeSwap())
      const ended = this.#ended()
      this.#control = await this.#unlessUsed(this.#openControl())
      process.stdout.write(`attached ${this.#path}\n`)
      this.#sayState()
      await notifyReady(`attached ${this.#path}`, say)
      const end = await ended
      left = end.left || (await this.#isFenced())
      if (!left) {
        // What swapoff reads may wait for a server that another process has.
        released = (await Promise.race([this.#release(), this.#fenced.promise])) ?? 'free'
        left = await this.#isFenced()
      }
      if (left) {
        await this.#control?.finish(FAREWELL_MS)
        // Who wanted this process to stop meant the device, and may know no other process to wait for: the manager of
        // a service that is stopped kills what is left when this one has ended.
        if (this.#options.signal.aborted) await this.#successor?.stop()
      } else if (released === 'free') await settleUdev()
      return this.#volume.fenced?.status ?? end.status
    } finally {
      for (const name of TERMINATION_SIGNALS) process.off(name, stir)
      this.#control?.close()
      this.#metrics?.close()
      this.#link?.end()
      if (!left && this.#volume.fenced === undefined) await this.#endAll(released === 'pull')
      holdsNoPages()
    }
  }

  #sayState(): void {
    const state = this.#succession?.folder.path
    if (state !== undefined && !this.#taken)
      say(`the state of ${this.#path} is in ${state}: the same command takes it over if this process dies`)
  }

  /** A device that was taken over is swap already, or somebody may use it in another way. */
  async #makeSwap(): Promise<void> {
    const name = blockName(this.#device)
    if (this.#taken) {
      const others = [describeUses(usesOf(name, [process.pid]).uses), ...partitionsOf(name)].filter(Boolean)
      if (others.length > 0) throw new Error(`${this.#path} is not made swap: ${others.join('; ')}`)
    }
    await swapOn(this.#path, this.#options.swapPriority)
  }

  /** Somebody else may have ended it, and another have its number since; or another process serve it. */
  #isOurs(): boolean {
    if (presenceOf(this.#device) !== 'there') return false
    return this.#device.front === 'nbd' || !ublkDevice.isServedByAnother(this.#device.index)
  }

  #release(): Promise<Release> {
    return release(this.#device, {
      isOurs: () => this.#isOurs(),
      isLost: () => this.#volume.lost,
      forced: this.#forced.signal,
      stirred: () =>
        new Promise((resolve) => {
          this.#stir = resolve
        }),
    })
  }

  /** Another process has the volume: the device is its own, too. What is lost may be that. */
  async #isFenced(): Promise<boolean> {
    const fenced = this.#volume.lost ? await this.#volume.askFenced() : this.#volume.fenced
    return fenced !== undefined
  }

  /** The volume gives its memory back, whatever becomes of the device. */
  async #endAll(pulled: boolean): Promise<void> {
    let removeRest = async (): Promise<void> => {}
    try {
      // The driver of ublk waits for answers, which may not come: not of a queue that has no thread any more.
      if (pulled && this.#device.front === 'ublk') await this.#volume.close()
      if (pulled) await pull(this.#device)
      else removeRest = await disconnect(this.#device)
    } finally {
      await this.#volume.close()
      this.#succession?.folder.forget()
    }
    await removeRest()
  }

  #placeLanes(): void {
    if (this.#options.pin) keepLanesNear(this.#volume, blockName(this.#device))
  }

  async #openMetrics(used = false): Promise<void> {
    this.#metrics = await this.#unlessUsed(serveMetrics(this.#volume, this.#options.metrics), used)
  }

  #status(): ClientStatus {
    const { swap } = this.#options
    const { identifier } = this.#device
    const state = this.#succession && { state: this.#succession.folder.path }
    return statusOf(this.#volume, { mode: 'attach', target: this.#path, identifier, swap, ...state })
  }

  #openControl(): Promise<ControlSocket> {
    return openControlSocket(
      // Between two processes there is nothing newer to tell.
      () => this.#lastStatus ?? this.#status(),
      (force) => {
        if (force) this.#forced.abort()
        process.kill(process.pid, 'SIGTERM')
      },
      { 'POST /upgrade': (body) => this.#upgrade(commandOf(body)) },
    )
  }

  /** What is not needed to serve pages may fail at the start, but must not end a device that holds some already. */
  async #unlessUsed<Service>(opened: Promise<Service>, used = false): Promise<Service | undefined> {
    try {
      return await opened
    } catch (failure) {
      if (!used && !this.#taken && !this.#isUsed()) throw failure
      say(`warning: ${(failure as Error).message}; ${this.#path} goes on without it`)
      return undefined
    }
  }

  /** Who only has it open may be udev, which looks at every device that is new. */
  #isUsed(): boolean {
    return usesOf(blockName(this.#device), [process.pid]).uses.some(({ kind }) => kind !== 'open')
  }

  /** Resolves with the exit status when the device is to end here. */
  #ended(): Promise<End> {
    const { signal } = this.#options
    // A successor that is just taking over is the one to stop, if it does.
    const stop = () =>
      void Promise.resolve(this.#handingOver)
        .finally(() => this.#end({ status: 0, left: false }))
        .catch(() => {})
    if (signal.aborted) stop()
    signal.addEventListener('abort', stop, { once: true })
    this.#watch()
    return this.#ending
  }

  #watch(): void {
    const volume = this.#volume
    const check = () => {
      if (volume.lost) this.#end({ status: 1, left: false })
      this.#stir()
    }
    volume.onServerFailure(check)
    volume.onBackupFailure(check)
    volume.onFenced((failure) => {
      this.#fenced.resolve()
      this.#leave(failure)
    })
    check()
  }

  async #upgrade(command: readonly string[] | undefined): Promise<Upgraded> {
    if (this.#succession === undefined)
      throw new Error(
        `${this.#path} was attached without state, which an upgrade needs; detach it and attach it again`,
      )
    if (this.#handingOver !== undefined) throw new Error(`${this.#path} is being upgraded already`)
    if (this.#options.signal.aborted) throw new Error(`${this.#path} is being detached`)
    this.#lastStatus = this.#status()
    this.#handingOver = this.#handOver(this.#succession, command ?? ownCommand())
    try {
      return await this.#handingOver
    } finally {
      this.#handingOver = undefined
      this.#lastStatus = undefined
    }
  }

  async #handOver(succession: Succession, command: readonly string[]): Promise<Upgraded> {
    say(`starting the successor of this process`)
    const successor = await Successor.start(command, { state: succession.folder.path })
    const parting = await this.#link?.part()
    // Its successor wants the same port.
    this.#metrics?.close()
    const outcome = await handOver({
      ...(parting && { parting }),
      volume: this.#volume,
      folder: succession.folder,
      successor,
      answerTimeout:
        this.#options.operationTimeout * 1000 * this.#options.replicas +
        ANSWER_SLACK_MS +
        (this.#options.backup === undefined ? 0 : BACKUP_SLACK_MS),
      ...(this.#device.front === 'ublk' ? { serveTimeout: UBLK_SERVE_MS } : {}),
      retake: () => succession.takeUp(),
    })
      .catch((failure: Error) => {
        this.#leave(failure)
        throw failure
      })
      .finally(() => void parting?.over?.().catch(() => {}))
    const pause = Math.round(outcome.pause)
    if (outcome.over) {
      successor.release()
      // Before this one ends, or the service would be taken for ended.
      await notifyMainProcess(successor.pid, say)
      this.#successor = successor
      say(`process ${successor.pid} goes on with ${this.#path}; its requests waited ${pause} ms`)
      this.#end({ status: 0, left: true })
      return { pid: successor.pid, pause }
    }
    try {
      await this.#goOn(succession, outcome)
    } catch (failure) {
      this.#leave(failure as Error)
      throw failure
    }
    await this.#openMetrics(true)
    throw new Error(
      `the successor failed: ${outcome.reason}; process ${process.pid} goes on with ${this.#path}, whose requests waited ${pause} ms`,
    )
  }

  /** Ends this process, but not the device: it has nobody here, and the next process serves it. */
  #leave(failure: Error): void {
    const waiting = `its requests ${this.#succession === undefined ? 'fail' : 'wait until the same command is run again'}`
    say(`${this.#path}: ${failure.message}${failure instanceof FencedError ? '' : `; ${waiting}`}`)
    this.#end({ status: failure instanceof ExitError ? failure.status : 1, left: true })
  }

  /** After a successor that failed. @throws Error when the kernel takes nothing from this process any more */
  async #goOn(succession: Succession, { volume, lost }: Retaken): Promise<void> {
    const same = volume === this.#volume
    this.#volume = volume
    // The queues of a ublk device have theirs for as long as they have their lanes.
    if (!same || this.#device.front === 'nbd')
      this.#takeLink(newLink(volume, succession.device, this.#options, true))
    // Also when it is to end now: for that it must be served.
    await this.#link?.retake(lost, !same, new AbortController().signal)
    if (!same) {
      this.#placeLanes()
      volume.start()
      this.#watch()
    }
  }
}

/** The queues of a ublk device are made after the process's memory was locked, and are part of the page path. */
export function lockQueues({ swap }: Pick<AttachOptions, 'swap'>): void {
  // What is not granted was said then.
  if (swap) protectProcess()
}

/** @param kept whether another process may take the device over */
export function newLink(
  volume: Volume,
  device: DeviceIdentity,
  options: AttachOptions,
  kept: boolean,
): DeviceLink {
  if (device.front === 'ublk') return new UblkLink(volume, device, () => lockQueues(options))
  return new KernelLink(volume, device, deviceTimeouts(options, kept))
}

/** @throws Error: it is no command line */
function commandOf(body: unknown): readonly string[] | undefined {
  const { command } = (body ?? {}) as { command?: unknown }
  if (command === undefined) return undefined
  if (Array.isArray(command) && command.length > 0 && command.every((word) => typeof word === 'string'))
    return command
  throw new Error('the command is not a list of words')
}
