import { parseSize } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import type { HostMemory } from './host-memory.js'

/** Percent of time stalled from which on more is kept free: the kernel is at work for memory already. */
const STALLED_PERCENT = 10
/**
 * Reclaim continues until this multiple of the headroom is free; otherwise each page that the host takes would move a
 * slab.
 */
const UNTIL = 1.25

/** `5%` of `total` bytes, or a size, or 0. @returns bytes @throws UsageError */
export function parseHeadroom(text: string, total: number): number {
  if (text === '0') return 0
  const percent = /^(\d+(?:\.\d+)?)%$/.exec(text.trim())?.[1]
  if (percent === undefined) return parseSize(text, '--headroom')
  if (Number(percent) > 90) throw new UsageError(`--headroom "${text}" leaves nothing to lend`)
  return Math.round((total * Number(percent)) / 100)
}

/** Decides from the host's state how much it lacks and how much may still be lent. With hysteresis. */
export class HostHeadroom {
  /** bytes that the host keeps when it is well; 0: as much as there is is lent */
  readonly bytes: number
  #memory: Pick<HostMemory, 'available' | 'stalled'> = { available: Number.POSITIVE_INFINITY, stalled: 0 }
  #low = false

  constructor(bytes: number) {
    this.bytes = bytes
  }

  update(memory: Pick<HostMemory, 'available' | 'stalled'>): void {
    this.#memory = memory
    this.#low = memory.available < (this.#low ? UNTIL : 1) * this.wanted
  }

  /** bytes that the host keeps now */
  get wanted(): number {
    return this.#memory.stalled > STALLED_PERCENT ? 2 * this.bytes : this.bytes
  }

  /** bytes that should come back; 0: the host is well */
  get missing(): number {
    return this.#low ? UNTIL * this.wanted - this.#memory.available : 0
  }

  /** bytes that may be lent */
  get spare(): number {
    if (this.bytes === 0) return Number.POSITIVE_INFINITY
    return this.#low ? 0 : Math.max(0, this.#memory.available - this.wanted)
  }

  get memory(): Pick<HostMemory, 'available' | 'stalled'> {
    return this.#memory
  }
}
