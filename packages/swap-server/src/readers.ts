import type { Writable } from 'node:stream'

/**
 * Lets this process outlive whoever reads what it prints, tee(1) say: what is printed then is lost, and nothing else,
 * be it pages that other machines lend or borrow.
 */
export function outliveReaders(): void {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
}

/**
 * Lets nothing that is printed wait for its reader, a terminal that was stopped say: Node.js waits for terminals, and for
 * no pipe or socket. For programs that others wait for; one that prints and ends would lose what it prints.
 */
export function outrunReaders(): void {
  for (const stream of [process.stdout, process.stderr]) {
    const { _handle: handle } = stream as { _handle?: { setBlocking?(blocking: boolean): void } | null }
    handle?.setBlocking?.(false)
  }
}

/** Bytes that wait for a reader. */
const MOST_WAITING = 65_536

/**
 * Lines for whoever reads them in time. Once too many wait the next ones are lost, until all that wait are read; then a
 * line says how many.
 */
export class LossyLines {
  readonly #stream: Writable
  readonly #lost: (count: number) => string
  #count = 0

  /** @param lost that line, with its end, as the others have it */
  constructor(stream: Writable, lost: (count: number) => string) {
    this.#stream = stream
    this.#lost = lost
    stream.on('drain', () => this.#tell())
  }

  /** @param line with its end */
  write(line: string): void {
    // A stream that has so much to write says when it is empty.
    if (this.#count > 0 || this.#stream.writableLength >= MOST_WAITING) this.#count++
    else this.#stream.write(line)
  }

  #tell(): void {
    if (this.#count === 0) return
    this.#stream.write(this.#lost(this.#count))
    this.#count = 0
  }
}
