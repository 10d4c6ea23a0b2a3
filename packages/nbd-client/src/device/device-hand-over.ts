import { notifyMainProcess } from '@rdmakit/swap-server/internal'
import type { Succession } from '../attach/succession.js'
import type { Upgraded } from '../report/control.js'
import { say } from '../report/log.js'
import { type HandOverOutcome, handOver } from '../upgrade/hand-over.js'
import { Successor } from '../upgrade/successor.js'
import type { Attachment } from './attachment.js'
import type { DeviceServices } from './device-services.js'
import { placeLanes } from './use-device.js'

/** Above the engine's own deadlines: a READ may have to try each replica, and the backup's file. */
const ANSWER_SLACK_MS = 6_000
const BACKUP_SLACK_MS = 10_000
/**
 * It may have to wait until the kernel releases this process: longer than that takes itself (kernel/ublk-device.ts).
 */
const UBLK_SERVE_MS = 35_000

type Retaken = Extract<HandOverOutcome, { over: false }>

/** The effect on this process. */
interface Holder {
  /** This process ends, and the device does not: no part of it is here any more. */
  leave(failure: Error): void
  /** The successor has it. */
  over(): void
  /** The device has another link. */
  relinked(): void
  /** It is served from here again, by another volume. */
  retaken(): void
}

/** Hands a device over to another process: an upgrade. */
export class DeviceHandOver {
  readonly #attachment: Attachment
  readonly #services: DeviceServices
  readonly #holder: Holder
  #underWay: Promise<Upgraded> | undefined
  #successor: Successor | undefined

  constructor(attachment: Attachment, services: DeviceServices, holder: Holder) {
    this.#attachment = attachment
    this.#services = services
    this.#holder = holder
  }

  /** continues with the device */
  get successor(): Successor | undefined {
    return this.#successor
  }

  /** what a hand-over under way comes to */
  get underWay(): Promise<Upgraded> | undefined {
    return this.#underWay
  }

  /**
   * @param command of the successor; default: that of this process @throws Error: this process continues, and the
   * reason
   */
  async upgrade(command: readonly string[] | undefined): Promise<Upgraded> {
    const { succession, path, options } = this.#attachment
    if (succession === undefined)
      throw new Error(
        `${path} was attached without state, which an upgrade needs; detach it and attach it again`,
      )
    if (this.#underWay !== undefined) throw new Error(`${path} is being upgraded already`)
    if (options.signal.aborted) throw new Error(`${path} is being detached`)
    try {
      return await this.#services.withLastStatus(() => {
        this.#underWay = this.#handOver(succession, command)
        return this.#underWay
      })
    } finally {
      this.#underWay = undefined
    }
  }

  async #handOver(succession: Succession, command: readonly string[] | undefined): Promise<Upgraded> {
    const { device, path, options } = this.#attachment
    say(`starting the successor of this process`)
    const successor = await Successor.start(command, { state: succession.folder.path })
    const parting = await this.#attachment.link.part().catch(async (failure: unknown) => {
      await successor.kill()
      throw failure
    })
    // Its successor wants the same port.
    this.#services.closeMetrics()
    const outcome = await handOver({
      parting,
      volume: this.#attachment.volume,
      folder: succession.folder,
      successor,
      answerTimeout:
        options.operationTimeout * 1000 * options.replicas +
        ANSWER_SLACK_MS +
        (options.backup === undefined ? 0 : BACKUP_SLACK_MS),
      ...(device.front === 'ublk' ? { serveTimeout: UBLK_SERVE_MS } : {}),
      retake: async () => {
        const volume = await succession.takeUp()
        succession.begin()
        return volume
      },
    })
      .catch((failure: Error) => {
        this.#holder.leave(failure)
        throw failure
      })
      .finally(() => void parting.over?.().catch(() => {}))
    const pause = Math.round(outcome.pause)
    if (outcome.over) {
      successor.release()
      // Before this one ends, or the service would be taken for ended.
      await notifyMainProcess(successor.pid, say)
      this.#successor = successor
      say(`process ${successor.pid} has taken over ${path}; its requests waited ${pause} ms`)
      this.#holder.over()
      return { pid: successor.pid, pause }
    }
    try {
      await this.#goOn(outcome)
    } catch (failure) {
      this.#holder.leave(failure as Error)
      throw failure
    }
    await this.#services.openMetrics(true)
    throw new Error(
      `the successor failed: ${outcome.reason}; process ${process.pid} keeps ${path}, whose requests waited ${pause} ms`,
    )
  }

  /** After a successor that failed. @throws Error when the kernel takes nothing from this process any more */
  async #goOn({ volume, lost }: Retaken): Promise<void> {
    const attachment = this.#attachment
    const same = volume === attachment.volume
    // The queues of a ublk device have theirs for as long as they have their lanes.
    if (!same || attachment.device.front === 'nbd') {
      attachment.relink(volume)
      this.#holder.relinked()
    }
    // Also when it is to end now: for that it must be served.
    await attachment.link.retake(lost, !same, new AbortController().signal)
    if (same) return
    placeLanes(attachment)
    volume.start()
    this.#holder.retaken()
  }
}
