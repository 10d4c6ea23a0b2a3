import { UsageError } from '@rdmakit/verbs'
import { closeDescriptor, receiveDescriptors } from '../kernel/kernel.js'
import {
  ChannelClosedError,
  HAND_OVER_VARIABLE,
  HAND_OVER_VERSION,
  HandOverChannel,
  MESSAGE_DESCRIPTOR,
  PASSING_DESCRIPTOR,
  STATE_VARIABLE,
} from './hand-over-channel.js'

/** It goes as soon as its lanes have answered, which servers that fail just then make slow. */
const GO_MS = 120_000
const YOURS_MS = 5_000

/** What a predecessor gives. */
export interface Inheritance {
  /** of the state folder */
  readonly lock: number
  /** descriptors by lane; the new owner closes them */
  readonly sockets: ReadonlyMap<number, number>
}

/** The process whose work this one is to continue, as seen from here. */
export class Predecessor {
  /** its state folder; undefined: it does not tell */
  readonly state: string | undefined
  readonly #channel: HandOverChannel

  private constructor(channel: HandOverChannel, state: string | undefined) {
    this.#channel = channel
    this.state = state
  }

  /** @returns undefined when this process was started by itself @throws UsageError: they do not understand each other */
  static find(): Predecessor | undefined {
    const version = process.env[HAND_OVER_VARIABLE]
    const state = process.env[STATE_VARIABLE]
    // Programs that this process starts must not see this.
    delete process.env[HAND_OVER_VARIABLE]
    delete process.env[STATE_VARIABLE]
    if (version === undefined) return undefined
    if (version !== String(HAND_OVER_VERSION))
      throw new UsageError(
        `the running nbd-client hands over by version ${version}, this one by ${HAND_OVER_VERSION}; restart it instead`,
      )
    return new Predecessor(HandOverChannel.of(MESSAGE_DESCRIPTOR), state)
  }

  /** @returns undefined when it has ended and left everything as it is */
  async inheritance(signal?: AbortSignal): Promise<Inheritance | undefined> {
    try {
      this.#channel.say({ say: 'ready', version: HAND_OVER_VERSION })
      const { lanes } = await this.#channel.hear('go', GO_MS, signal)
      const [lock, ...sockets] = receiveDescriptors(PASSING_DESCRIPTOR)
      if (lock === undefined || sockets.length !== lanes.length)
        throw new Error('the running nbd-client passed other sockets than it announced')
      return { lock, sockets: new Map(lanes.map((lane, at) => [lane, sockets[at] as number])) }
    } catch (failure) {
      if (failure instanceof ChannelClosedError) return undefined
      throw failure
    } finally {
      closeDescriptor(PASSING_DESCRIPTOR)
    }
  }

  /** Says that this process has the volume. Resolves when it may touch the sockets. */
  async taken(signal?: AbortSignal): Promise<void> {
    this.#channel.say({ say: 'taken' })
    try {
      await this.#channel.hear('yours', YOURS_MS, signal)
    } catch (failure) {
      // One that wants them back kills us before it closes the channel. It is gone, and we have everything.
      if (!(failure instanceof ChannelClosedError)) throw failure
    }
  }

  serving(): void {
    this.#channel.say({ say: 'serving' })
  }
}
