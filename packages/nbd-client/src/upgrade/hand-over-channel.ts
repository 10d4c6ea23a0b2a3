import { Socket } from 'node:net'

/**
 * What the two processes of a hand-over say to each other, one JSON object a line, in this order. Versions of the
 * program differ in everything but this.
 */
export type HandOverMessage =
  /** successor: it can be handed to */
  | { readonly say: 'ready'; readonly version: number }
  /** predecessor: nothing is under way; the lock and a socket for each of `lanes`, in this order, are sent. None: of ublk */
  | { readonly say: 'go'; readonly lanes: readonly number[] }
  /** successor: it has the volume, and waits for the word to touch the sockets */
  | { readonly say: 'taken' }
  /** predecessor: they are yours */
  | { readonly say: 'yours' }
  /** successor: it serves them */
  | { readonly say: 'serving' }

export const HAND_OVER_VERSION = 1
/** In the environment of a successor: the version that its predecessor speaks. */
export const HAND_OVER_VARIABLE = 'RDMAKIT_HAND_OVER'
/** Beside it: the state folder of the predecessor. */
export const STATE_VARIABLE = 'RDMAKIT_HAND_OVER_STATE'
/** The open descriptors of a successor: the messages, and the socket over which descriptors come. */
export const MESSAGE_DESCRIPTOR = 3
export const PASSING_DESCRIPTOR = 4

/** Those of these that this process was given, if it is a successor. */
export const givenDescriptors = (): number[] =>
  process.env[HAND_OVER_VARIABLE] === undefined ? [] : [MESSAGE_DESCRIPTOR, PASSING_DESCRIPTOR]

const MAXIMUM_LINE = 4096

/** The other process has ended, or has closed its end. */
export class ChannelClosedError extends Error {
  override readonly name = 'ChannelClosedError'
}

/** One end of the conversation. */
export class HandOverChannel {
  readonly #socket: Socket
  readonly #lines: string[] = []
  #partial = ''
  #closed = false
  #wake = () => {}

  constructor(socket: Socket) {
    this.#socket = socket
    const end = () => {
      this.#closed = true
      this.#wake()
    }
    socket.setEncoding('utf8')
    socket.on('data', (text: string) => this.#receive(text))
    socket.on('end', end).on('close', end).on('error', end)
  }

  static of(descriptor: number): HandOverChannel {
    return new HandOverChannel(new Socket({ fd: descriptor, readable: true, writable: true }))
  }

  say(message: HandOverMessage): void {
    this.#socket.write(`${JSON.stringify(message)}\n`)
  }

  /**
   * Waits for the one message that may come now.
   * @param timeout milliseconds
   * @throws ChannelClosedError; Error: too late, or something else was said
   */
  async hear<Say extends HandOverMessage['say']>(
    say: Say,
    timeout: number,
    signal?: AbortSignal,
  ): Promise<Extract<HandOverMessage, { say: Say }>> {
    const deadline = performance.now() + timeout
    for (;;) {
      const line = this.#lines.shift()
      if (line !== undefined) return parse(line, say)
      if (this.#closed) throw new ChannelClosedError(`it ended instead of saying "${say}"`)
      signal?.throwIfAborted()
      const left = deadline - performance.now()
      if (left <= 0) throw new Error(`it did not say "${say}" within ${timeout} ms`)
      await this.#event(left, signal)
    }
  }

  close(): void {
    this.#socket.destroy()
  }

  /** Resolves when a line has arrived, the other end has closed, `signal` aborts or the time is up. */
  #event(timeout: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', end)
        this.#wake = () => {}
        resolve()
      }
      const timer = setTimeout(end, timeout)
      signal?.addEventListener('abort', end)
      this.#wake = end
    })
  }

  #receive(text: string): void {
    const lines = (this.#partial + text).split('\n')
    this.#partial = lines.pop() ?? ''
    this.#lines.push(...lines)
    // It is no successor, whatever it is.
    if (this.#partial.length > MAXIMUM_LINE) this.#socket.destroy()
    this.#wake()
  }
}

function parse<Say extends HandOverMessage['say']>(
  line: string,
  say: Say,
): Extract<HandOverMessage, { say: Say }> {
  let message: Partial<HandOverMessage> = {}
  try {
    message = JSON.parse(line) ?? {}
  } catch {
    // Judged below: it is not what may come now.
  }
  if (message.say !== say) throw new Error(`it said something else than "${say}"`)
  if (message.say === 'ready' && message.version !== HAND_OVER_VERSION)
    throw new Error(`it hands over by version ${message.version}, this nbd-client by ${HAND_OVER_VERSION}`)
  if (message.say === 'go' && !isLaneList(message.lanes)) throw new Error('it named no lanes')
  return message as Extract<HandOverMessage, { say: Say }>
}

function isLaneList(lanes: unknown): boolean {
  return Array.isArray(lanes) && lanes.every((lane) => Number.isInteger(lane) && lane >= 0 && lane < 64)
}
