import type { ControlSocket, MetricsEndpoint } from '@rdmakit/operator-kit'
import { statusOf } from '../report/client-status.js'
import { type ClientStatus, openControlSocket, type Upgraded } from '../report/control.js'
import { say } from '../report/log.js'
import type { Attachment } from './attachment.js'
import { isUsed } from './use-device.js'

/** Time for the answer to the request for the upgrade to be sent. */
const FAREWELL_MS = 2_000

/** A process's services besides its device: metrics and a control socket. */
export class DeviceServices {
  readonly #attachment: Attachment
  #control: ControlSocket | undefined
  #metrics: MetricsEndpoint | undefined
  #lastStatus: ClientStatus | undefined

  constructor(attachment: Attachment) {
    this.#attachment = attachment
  }

  /** @param used the device is in use */
  async openMetrics(used = false): Promise<void> {
    const { volume, options } = this.#attachment
    const { metrics } = options
    if (metrics === undefined) return
    const open = async () => (await import('../report/metrics.js')).serveMetrics(volume, metrics)
    this.#metrics = await this.unlessUsed(open(), used)
  }

  async openControl(
    stop: (force: boolean) => void,
    upgrade: (command: readonly string[] | undefined) => Promise<Upgraded>,
  ): Promise<void> {
    this.#control = await this.unlessUsed(
      openControlSocket(
        // Between two processes there is nothing newer to tell.
        () => this.#lastStatus ?? this.#status(),
        stop,
        { 'POST /upgrade': (body) => upgrade(commandOf(body)) },
      ),
    )
  }

  /**
   * A service that is not needed to serve pages may fail at the start, but must not end a device that has pages
   * already.
   */
  async unlessUsed<Service>(opened: Promise<Service>, used = false): Promise<Service | undefined> {
    try {
      return await opened
    } catch (failure) {
      const { taken, path } = this.#attachment
      if (!used && !taken && !isUsed(this.#attachment)) throw failure
      say(`warning: ${(failure as Error).message}; ${path} continues without it`)
      return undefined
    }
  }

  /** The status stays as it is while `work` is done. */
  async withLastStatus<Result>(work: () => Promise<Result>): Promise<Result> {
    this.#lastStatus = this.#status()
    try {
      return await work()
    } finally {
      this.#lastStatus = undefined
    }
  }

  /** Another process continues with the device, and needs the same port. */
  closeMetrics(): void {
    this.#metrics?.close()
  }

  /** Answers outstanding requests of the control socket. */
  async finish(): Promise<void> {
    await this.#control?.finish(FAREWELL_MS)
  }

  close(): void {
    this.#control?.close()
    this.#metrics?.close()
  }

  #status(): ClientStatus {
    const { volume, path, device, options, succession } = this.#attachment
    const state = succession && { state: succession.folder.path }
    return statusOf(volume, {
      mode: 'attach',
      target: path,
      identifier: device.identifier,
      swap: options.swap,
      ...state,
    })
  }
}

/** @throws Error: it is no command line */
function commandOf(body: unknown): readonly string[] | undefined {
  const { command } = (body ?? {}) as { command?: unknown }
  if (command === undefined) return undefined
  if (Array.isArray(command) && command.length > 0 && command.every((word) => typeof word === 'string'))
    return command
  throw new Error('the command is not a list of words')
}
