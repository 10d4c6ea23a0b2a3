import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { closeDescriptor, descriptorChannel, sendDescriptors } from '../kernel/kernel.js'
import {
  HAND_OVER_VARIABLE,
  HAND_OVER_VERSION,
  HandOverChannel,
  MESSAGE_DESCRIPTOR,
  STATE_VARIABLE,
} from './hand-over-channel.js'
import { ownCommand } from './own-command.js'

/** Nothing waits for it yet: a slow machine may start a program slowly. */
const READY_MS = 120_000
/**
 * For its sessions and lanes. The kernel's requests wait meanwhile: longer than this one, the device has died of other
 * things.
 */
const TAKE_MS = 20_000
/** For the sockets, when it has all else. */
const SERVE_MS = 5_000
/** For its end, when it was killed. */
const KILL_MS = 3_000

/**
 * The process that is to continue where this one ends, as seen from here. It is a child of this one: in the
 * same control group and service, with the same user, environment and folder.
 */
export class Successor {
  readonly #process: ChildProcess
  readonly #channel: HandOverChannel
  readonly #passing: number
  readonly #ended: Promise<void>

  private constructor(child: ChildProcess, passing: number) {
    this.#process = child
    child.on('error', () => {}) // a signal to one that has ended
    this.#passing = passing
    this.#channel = new HandOverChannel(child.stdio[MESSAGE_DESCRIPTOR] as Socket)
    this.#ended = new Promise((resolve) => {
      if (child.exitCode !== null || child.signalCode !== null) resolve()
      else child.once('exit', () => resolve())
    })
  }

  /**
   * Resolves when it waits for the hand-over.
   * @param command default: that of this process
   * @param state the folder that it finds when its command line names none
   * @param patience ms @throws Error: it cannot be started, does not want to, or is too slow
   */
  static async start(
    command: readonly string[] = ownCommand(),
    { state, patience = READY_MS }: { readonly state?: string; readonly patience?: number } = {},
  ): Promise<Successor> {
    const [program, ...rest] = command
    if (program === undefined) throw new Error('there is no command to start the successor with')
    const [ours, theirs] = descriptorChannel()
    let successor: Successor | undefined
    try {
      const child = spawn(program, rest, {
        stdio: ['ignore', 'inherit', 'inherit', 'pipe', theirs],
        env: {
          ...process.env,
          [HAND_OVER_VARIABLE]: String(HAND_OVER_VERSION),
          ...(state === undefined ? {} : { [STATE_VARIABLE]: state }),
        },
      })
      await once(child, 'spawn')
      successor = new Successor(child, ours)
      await successor.#channel.hear('ready', patience)
      return successor
    } catch (failure) {
      if (successor === undefined) closeDescriptor(ours)
      else await successor.kill()
      throw new Error(`${program} cannot take over: ${(failure as Error).message}`)
    } finally {
      closeDescriptor(theirs)
    }
  }

  get pid(): number {
    return this.#process.pid ?? -1
  }

  /**
   * Gives it the state folder's lock and the sockets by lane, and waits until it has the volume.
   * @throws Error: it failed, or was too slow
   */
  async give(lock: number, sockets: ReadonlyMap<number, number>): Promise<void> {
    sendDescriptors(this.#passing, [lock, ...sockets.values()])
    this.#channel.say({ say: 'go', lanes: [...sockets.keys()] })
    await this.#channel.hear('taken', TAKE_MS)
  }

  /** From here on the device is its own. Resolves when it serves it. @param patience ms @throws Error as {@link give} */
  async commit(patience = SERVE_MS): Promise<void> {
    this.#channel.say({ say: 'yours' })
    await this.#channel.hear('serving', patience)
  }

  /** It continues on its own. */
  release(): void {
    this.#close()
    this.#process.unref()
  }

  /**
   * Resolves when nothing of the program runs in it any more. A process that waits within the kernel, perhaps
   * for a page of this very device, ends only when that wait is over, and keeps its files until then: this
   * call does not wait for that.
   */
  async kill(): Promise<void> {
    // Before the channel: a successor that finds its predecessor gone continues on its own.
    this.#process.kill('SIGKILL')
    await Promise.race([this.#ended, delay(KILL_MS, undefined, { ref: false })])
    this.#close()
  }

  /** Has it end its device, as SIGTERM does. Resolves when it has. */
  async stop(): Promise<void> {
    this.#process.kill('SIGTERM')
    await this.#ended
  }

  #close(): void {
    this.#channel.close()
    closeDescriptor(this.#passing)
  }
}
