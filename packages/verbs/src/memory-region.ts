import { UsageError } from './errors.js'
import { type Handle, native } from './native.js'
import type { ProtectionDomain } from './protection-domain.js'
import { Resource } from './resource.js'

const ACCESS = { 'local-write': 1, 'remote-write': 2, 'remote-read': 4, 'remote-atomic': 8 } as const

/** ibv_reg_mr(3): `remote-write` and `remote-atomic` imply `local-write`. */
export type Access = keyof typeof ACCESS

/** @internal */
export function accessBits(access: readonly Access[]): number {
  let bits = 0
  for (const one of access) {
    if (!(one in ACCESS)) throw new UsageError(`unknown access "${one}"`)
    bits |= ACCESS[one]
    if (one === 'remote-write' || one === 'remote-atomic') bits |= ACCESS['local-write']
  }
  return bits
}

/** A slice of a memory region as work requests name it. */
export interface ScatterGatherElement {
  readonly region: MemoryRegion
  /** bytes from the region's start, default 0 */
  readonly offset?: number
  /** bytes, default to the region's end */
  readonly length?: number
}

/** Registered memory (ibv_mr) and the one ArrayBuffer over it. */
export class MemoryRegion extends Resource {
  readonly protectionDomain: ProtectionDomain
  readonly length: number
  /** virtual address, as remote peers name it */
  readonly address: bigint
  readonly localKey: number
  readonly remoteKey: number
  #buffer: ArrayBuffer | undefined

  /** @internal made by {@link ProtectionDomain.allocateMemoryRegion} */
  constructor(protectionDomain: ProtectionDomain, handle: Handle) {
    super(handle, [protectionDomain])
    this.protectionDomain = protectionDomain
    const info = native.mrInfo(handle)
    this.length = info.length
    this.address = info.address
    this.localKey = info.localKey
    this.remoteKey = info.remoteKey
  }

  get description(): string {
    return `memory region 0x${this.remoteKey.toString(16)} (${this.length} bytes)`
  }

  /** The memory itself; always the same ArrayBuffer. It is detached (length 0) by {@link close}. */
  get buffer(): ArrayBuffer {
    if (this.#buffer === undefined) this.#buffer = native.mrBuffer(this.handle)
    return this.#buffer
  }
}

/** @internal the native form of scatter/gather elements, bounds checked */
export function nativeSges(elements: readonly ScatterGatherElement[]) {
  return elements.map(({ region, offset = 0, length = region.length - offset }) => {
    if (!Number.isSafeInteger(offset) || !Number.isSafeInteger(length) || offset < 0 || length < 0)
      throw new UsageError(
        `offset and length must be whole numbers of bytes from 0, not ${offset} and ${length}`,
      )
    if (offset + length > region.length)
      throw new UsageError(
        `bytes ${offset}…${offset + length} are outside of a region of ${region.length} bytes`,
      )
    if (region.closed) throw new UsageError(`${region.description} is closed`)
    return { address: region.address + BigInt(offset), length, localKey: region.localKey }
  })
}
