import { constants, openSync, writeSync } from 'node:fs'
import { Writable } from 'node:stream'

/**
 * Lets this process outlive the reader of its output, such as tee(1): only later output is lost, and nothing
 * else, in particular no pages that other machines lend or borrow.
 */
export function ignoreBrokenPipe(): void {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
}

/**
 * Prints, for a program that ends when it has printed: a process that ends before its reader has taken all loses what a pipe
 * has no room for, above 64 KiB.
 * @returns when the reader has it, or is gone
 */
export function print(text: string): Promise<void> {
  return new Promise((resolve) => process.stdout.write(text, () => resolve()))
}

/**
 * Lets nothing that is printed wait for its reader, a terminal that was stopped say: Node.js waits for terminals, and for
 * no pipe or socket. For programs that others wait for; one that prints and ends would lose what it prints.
 */
export function makeStdioNonBlocking(): void {
  for (const name of ['stdout', 'stderr'] as const) {
    const { isTTY, fd } = process[name]
    const terminal = isTTY ? Terminal.of(fd) : undefined
    if (terminal !== undefined) Object.defineProperty(process, name, { value: terminal, configurable: true })
  }
}

/**
 * Has the warnings of Node.js told as all else that a program tells: by itself Node.js prints lines of its own, and what
 * reads a log line by line fails on the first of them.
 */
export function redirectWarnings(tell: (warning: Error) => void): void {
  process.removeAllListeners('warning')
  process.on('warning', tell)
}

/** A terminal that is stopped is tried again this often. */
const RETRY_MS = 100

/**
 * A terminal by a descriptor of our own, with which no write waits (open(2), O_NONBLOCK): the inherited one
 * is shared with other programs that print there, and Node.js waits for it.
 */
class Terminal extends Writable {
  readonly isTTY = true
  readonly #descriptor: number

  private constructor(descriptor: number) {
    super()
    this.#descriptor = descriptor
    this.on('error', () => {})
  }

  /** undefined: it is another user's, who lets us print there but not open it */
  static of(fd: number): Terminal | undefined {
    const flags = constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY
    try {
      return new Terminal(openSync(`/proc/self/fd/${fd}`, flags))
    } catch {
      return undefined
    }
  }

  override _write(chunk: Buffer, encoding: BufferEncoding, done: (failure?: Error | null) => void): void {
    let rest = chunk
    try {
      while (rest.length > 0) rest = rest.subarray(writeSync(this.#descriptor, rest))
      done()
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code !== 'EAGAIN') done(failure as Error)
      else setTimeout(() => this._write(rest, encoding, done), RETRY_MS).unref()
    }
  }
}
