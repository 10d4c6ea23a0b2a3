import type { Writable } from 'node:stream'

/** Bytes that wait for a reader. */
const MOST_WAITING = 65_536

/**
 * Lines for a reader that may be slow. When too many wait, later ones are lost until all waiting lines are
 * read; then a line says how many.
 */
export class LossyLines {
  readonly #find: () => Writable
  #stream: Writable | undefined
  readonly #lost: (count: number) => string
  #count = 0

  /**
   * @param stream where they go, asked for when there is the first: {@link makeStdioNonBlocking} may take its place before
   * @param lost that line, with its end, as the others have it
   */
  constructor(stream: () => Writable, lost: (count: number) => string) {
    this.#find = stream
    this.#lost = lost
  }

  /** @param line with its end */
  write(line: string): void {
    this.#stream ??= this.#open()
    // A stream that has so much to write says when it is empty.
    if (this.#count > 0 || this.#stream.writableLength >= MOST_WAITING) this.#count++
    else this.#stream.write(line)
  }

  #open(): Writable {
    return this.#find().on('drain', () => this.#tell())
  }

  #tell(): void {
    if (this.#count === 0) return
    this.#stream?.write(this.#lost(this.#count))
    this.#count = 0
  }
}
