import { ExitError, TERMINATION_SIGNALS } from '@rdmakit/operator-kit'
import { FencedError } from '@rdmakit/remote-volume'
import { notifyReady } from '@rdmakit/swap-server/internal'
import { deferred } from '@rdmakit/verbs/internal'
import { holdsNoPages, holdsPages } from '../report/last-resort.js'
import { say } from '../report/log.js'
import { Attachment, type AttachmentParts } from './attachment.js'
import { DeviceHandOver } from './device-hand-over.js'
import { type Release, release } from './device-release.js'
import { DeviceServices } from './device-services.js'
import { endDevice, settleDevice } from './end-device.js'
import { enlargeRequests, makeSwap, placeLanes } from './use-device.js'

/** The end of the device here; `left`: another process serves the device, or will. */
interface End {
  readonly status: number
  readonly left: boolean
}

/**
 * A device of the kernel, from its start to its orderly end, or until another process takes it over or ends it. A
 * later device with the same number is never touched.
 */
export class AttachedDevice {
  readonly #attachment: Attachment
  readonly #services: DeviceServices
  readonly #handOver: DeviceHandOver
  readonly #forced = new AbortController()
  /** see {@link Holder.stirred} */
  #stir = () => {}
  #end!: (end: End) => void
  readonly #ending = new Promise<End>((resolve) => {
    this.#end = resolve
  })
  /** settles when another process has the volume */
  readonly #fenced = deferred<void>()

  /** @param link default: a new one */
  constructor(parts: AttachmentParts, link?: Attachment['link']) {
    const attachment = new Attachment(parts, link)
    this.#attachment = attachment
    this.#services = new DeviceServices(attachment)
    this.#handOver = new DeviceHandOver(attachment, this.#services, {
      leave: (failure) => this.#leave(failure),
      over: () => this.#end({ status: 0, left: true }),
      relinked: () => this.#hearLink(),
      retaken: () => this.#watch(),
    })
    this.#hearLink()
  }

  #hearLink(): void {
    const { link } = this.#attachment
    link.failed = (failure) => this.#leave(failure)
    link.gone = (what) => {
      say(what)
      this.#end({ status: 1, left: false })
      this.#stir()
    }
  }

  /** Ends the device, unless it was handed over: then it leaves everything. @returns the process's exit status */
  async hold(): Promise<number> {
    const { options, path, succession } = this.#attachment
    const services = this.#services
    let left = false
    holdsPages(succession !== undefined)
    let released: Release = 'free'
    const stir = () => this.#stir()
    for (const name of TERMINATION_SIGNALS) process.on(name, stir)
    try {
      // Before the swap: what may fail, and is not needed, must not end it.
      await services.openMetrics()
      enlargeRequests(this.#attachment)
      placeLanes(this.#attachment)
      await services.unlessUsed(makeSwap(this.#attachment))
      const ended = this.#ended()
      await this.#openControl()
      process.stdout.write(`attached ${path}\n`)
      this.#sayState()
      await notifyReady(`attached ${path}`, say)
      const end = await ended
      left = end.left || (await this.#isFenced())
      if (!left) {
        // swapoff may wait for a server that another process has.
        released = (await Promise.race([this.#release(), this.#fenced.promise])) ?? 'free'
        left = await this.#isFenced()
      }
      if (left) {
        await services.finish()
        // A request to stop this process means the device, and the requester may know no other process to wait for:
        // the manager of a service that is stopped kills the other processes when this one has ended.
        if (options.signal.aborted) await this.#handOver.successor?.stop()
      } else if (released === 'free') await settleDevice()
      return this.#attachment.volume.fenced?.status ?? end.status
    } finally {
      for (const name of TERMINATION_SIGNALS) process.off(name, stir)
      services.close()
      this.#attachment.link.end()
      if (!left && this.#attachment.volume.fenced === undefined)
        await endDevice(this.#attachment, released === 'pull')
      holdsNoPages()
    }
  }

  #openControl(): Promise<void> {
    return this.#services.openControl(
      (force) => {
        if (force) this.#forced.abort()
        process.kill(process.pid, 'SIGTERM')
      },
      (command) => this.#handOver.upgrade(command),
    )
  }

  #sayState(): void {
    const { succession, path, taken } = this.#attachment
    const state = succession?.folder.path
    if (state !== undefined && !taken)
      say(`the state of ${path} is in ${state}: the same command takes it over if this process dies`)
  }

  #release(): Promise<Release> {
    return release(this.#attachment.device, {
      isOurs: () => this.#attachment.isOurs(),
      isLost: () => this.#attachment.volume.lost,
      forced: this.#forced.signal,
      stirred: () =>
        new Promise((resolve) => {
          this.#stir = resolve
        }),
    })
  }

  /** Another process has the volume: the device is its own, too. That may be the cause of the loss. */
  async #isFenced(): Promise<boolean> {
    const { volume } = this.#attachment
    const fenced = volume.lost ? await volume.askFenced() : volume.fenced
    return fenced !== undefined
  }

  /** Resolves with the exit status when the device is to end here. */
  #ended(): Promise<End> {
    const { signal } = this.#attachment.options
    // A successor that is just taking over is the one to stop, if it does.
    const stop = () =>
      void Promise.resolve(this.#handOver.underWay)
        .finally(() => this.#end({ status: 0, left: false }))
        .catch(() => {})
    if (signal.aborted) stop()
    signal.addEventListener('abort', stop, { once: true })
    this.#watch()
    return this.#ending
  }

  #watch(): void {
    const { volume } = this.#attachment
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

  /** Ends this process, but not the device: no part of it is here any more, and the next process serves it. */
  #leave(failure: Error): void {
    const { path, succession } = this.#attachment
    const waiting = `its requests ${succession === undefined ? 'fail' : 'wait until the same command is run again'}`
    say(`${path}: ${failure.message}${failure instanceof FencedError ? '' : `; ${waiting}`}`)
    this.#end({ status: failure instanceof ExitError ? failure.status : 1, left: true })
  }
}
