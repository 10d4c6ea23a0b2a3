// How the frames of a ring lie, by the version of the wire: their units, and the windows of the ring.
import type { ProviderName } from '@rdmakit/verbs'

/** The versions that this end speaks, the one that it offers first. Older ones are served for one release. */
export const VERSIONS = [4, 3, 2] as const
export type Version = (typeof VERSIONS)[number]

/** Units of a version's frames, bytes as a power of two: see native/ring/wire/frame_format.h. */
export function unitLog2(version: Version): number {
  return version === 2 ? 6 : 4
}

/** Each window is four times as long as the one before it. */
const GROWTH_LOG2 = 2
/** Bytes of a ring's first window, as a power of two, where the ring is not shorter. */
const FIRST_LOG2 = 14
/** Bytes of a ring by default, as a power of two. */
export const USUAL_LOG2 = 20
/** … over iwarp, where what a socket takes at once decides how fast large messages are. */
const IWARP_LOG2 = 22

/**
 * The windows of a ring, one behind the other in its region: frames are in the first until their sender moves on to a
 * larger one (native/ring/wire/windows.h). Versions before 4 have one, which is the ring.
 */
export class Windows {
  /** bytes of the last window, the largest, as a power of two: the ring's capacity */
  readonly log2Capacity: number
  readonly count: number

  constructor(log2Capacity: number, count: number) {
    this.log2Capacity = log2Capacity
    this.count = count
  }

  /**
   * Those of a ring of this end's. One where all of it is resident anyway, because the device pins it or the version has
   * one only.
   *
   * @param log2Capacity undefined: the default
   */
  static of(log2Capacity: number | undefined, version: Version, provider: ProviderName): Windows {
    const several = version >= 4 && provider !== 'ibverbs'
    const log2 = log2Capacity ?? (several && provider === 'iwarp' ? IWARP_LOG2 : USUAL_LOG2)
    return new Windows(log2, 1 + (several ? Math.max(0, Math.floor((log2 - FIRST_LOG2) / GROWTH_LOG2)) : 0))
  }

  log2Of(window: number): number {
    return this.log2Capacity - GROWTH_LOG2 * (this.count - 1 - window)
  }

  /** Bytes of the region before a window. */
  begin(window: number): number {
    let bytes = 0
    for (let before = 0; before < window; before++) bytes += 2 ** this.log2Of(before)
    return bytes
  }

  /** Bytes of all of them. */
  get bytes(): number {
    return this.begin(this.count)
  }
}
