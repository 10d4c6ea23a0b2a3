// The common part of the control plane's targets: a check that ends the run, a reader of the fuzzer's bytes, and time
// that passes when the input says so, so that an input always has the same effect.
import { ConnectionId, type Context } from '@rdmakit/verbs'

/** Slabs are registered memory of this device, like a server's. No process listens at the address. */
const device = await ConnectionId.resolve('iwarp://127.0.0.1:9')
export const context: Context = device.context

export function check(condition: unknown, what: string): asserts condition {
  if (!condition) throw new Error(`failed: ${what}`)
}

const rejections: unknown[] = []
process.on('unhandledRejection', (reason) => rejections.push(reason))

/** Lets everything go on that waits for nothing outside of this process. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => setImmediate(resolve))
  if (rejections.length > 0) throw new Error('a rejection that nobody handles', { cause: rejections.pop() })
}

/** The input as a script: zeros after its end. */
export class Input {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  get empty(): boolean {
    return this.#at >= this.#bytes.length
  }

  byte(): number {
    return this.#bytes[this.#at++] ?? 0
  }

  two(): number {
    return this.byte() * 256 + this.byte()
  }

  take(length: number): Buffer {
    const from = Math.min(this.#at, this.#bytes.length)
    this.#at = from + length
    return Buffer.from(this.#bytes.subarray(from, from + length))
  }

  /** Bytes with their length before them. */
  message(): Buffer {
    return this.take(this.two())
  }
}

interface Timer {
  readonly run: () => void
  readonly every: number | undefined
  at: number
}

/** The program's clock and timers, from here on. */
export class Clock {
  #now = 0
  readonly #timers = new Map<object, Timer>()

  constructor() {
    const set = (run: () => void, delay: number, every?: number) => {
      const handle = { ref: () => handle, unref: () => handle, hasRef: () => false }
      this.#timers.set(handle, { run, at: this.#now + Math.max(1, delay), every })
      return handle
    }
    const clear = (handle: object | undefined) => void (handle && this.#timers.delete(handle))
    Object.assign(globalThis, {
      setTimeout: (run: () => void, delay = 1) => set(run, delay),
      setInterval: (run: () => void, delay = 1) => set(run, delay, Math.max(1, delay)),
      clearTimeout: clear,
      clearInterval: clear,
    })
    const started = Date.now()
    Date.now = () => started + this.#now
    performance.now = () => this.#now
  }

  /** timers that wait */
  get timers(): number {
    return this.#timers.size
  }

  pass(milliseconds: number): void {
    const until = this.#now + milliseconds
    for (;;) {
      let next: [object, Timer] | undefined
      for (const entry of this.#timers) if (next === undefined || entry[1].at < next[1].at) next = entry
      if (next === undefined || next[1].at > until) break
      const [handle, timer] = next
      this.#now = Math.max(this.#now, timer.at)
      if (timer.every === undefined) this.#timers.delete(handle)
      else timer.at += timer.every
      timer.run()
    }
    this.#now = until
  }
}
