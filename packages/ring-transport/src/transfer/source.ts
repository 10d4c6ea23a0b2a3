import { types } from 'node:util'
import {
  type MemoryRegion,
  type ProtectionDomain,
  type ScatterGatherElement,
  UsageError,
} from '@rdmakit/verbs'
import { registrable } from '@rdmakit/verbs/internal'
import { encodeOffer } from './format.js'
import { memoryOf } from './region.js'

/** A program's data to send: bytes of its own, or a part of a region. */
type Sent = Uint8Array | ScatterGatherElement

/** Memory that a message is in, and that the peer is to read. */
export interface Source {
  readonly length: number
  /**
   * What tells the peer where it is; a promise while it is being registered.
   * @param progressEvery see {@link OfferFields}
   */
  offer(progressEvery: number): Uint8Array | Promise<Uint8Array>
  /**
   * Takes it from the peer, which reads it no more when this returns, or when the promise that it returns resolves.
   * Idempotent.
   */
  release(): Promise<void> | undefined
}

/**
 * Bytes of the largest message that is registered, and taken back, on JavaScript's thread. A device pins a MiB in up to
 * 0.25 ms; another thread's help costs about 0.1 ms.
 */
const AT_ONCE = 4 * 2 ** 20

/** @throws UsageError for what cannot be sent, so short that it needs no registration or not */
export function lengthOf(what: Sent): number {
  return types.isUint8Array(what)
    ? registrable(what as Uint8Array<ArrayBuffer>).byteLength
    : slice(what).length
}

/** The bytes themselves. @throws UsageError: JavaScript cannot see them */
export function bytesOf(what: Sent): Uint8Array {
  if (types.isUint8Array(what)) return what
  const { region, offset, length } = slice(what)
  return memoryOf(region).subarray(offset, offset + length)
}

/** @throws UsageError: the region is not of the connection whose protection domain that is; VerbsError ENOMEM */
export function sourceOf(what: Sent, protectionDomain: ProtectionDomain): Source {
  if (types.isUint8Array(what)) return registered(protectionDomain, what as Uint8Array<ArrayBuffer>)
  const { region, offset, length } = slice(what)
  if (region.protectionDomain !== protectionDomain)
    throw new UsageError('the region does not belong to this connection: use its allocate()')
  return {
    length,
    offer: (progressEvery) => offerOf(region, offset, length, progressEvery),
    release: () => undefined,
  }
}

/** A program's own bytes, which are registered for one message. */
function registered(protectionDomain: ProtectionDomain, bytes: Uint8Array<ArrayBuffer>): Source {
  const { length } = bytes
  if (length <= AT_ONCE) {
    const region = protectionDomain.registerMemoryRegion(bytes, ['remote-read'])
    return {
      length,
      offer: (progressEvery) => offerOf(region, 0, length, progressEvery),
      release: () => void region.close(),
    }
  }
  let made: Promise<MemoryRegion> | undefined
  let released: Promise<void> | undefined
  const release = async () => {
    const region = await made?.catch(() => undefined)
    await region?.closeAsync()
  }
  return {
    length,
    offer: async (progressEvery) => {
      made = protectionDomain.registerMemoryRegionAsync(bytes, ['remote-read'])
      return offerOf(await made, 0, length, progressEvery)
    },
    release: () => {
      released ??= release()
      return released
    },
  }
}

function offerOf(region: MemoryRegion, offset: number, length: number, progressEvery: number): Uint8Array {
  const { address, remoteKey } = region
  return encodeOffer({ address: address + BigInt(offset), length, remoteKey, progressEvery })
}

/** A slice with its defaults, checked. */
function slice({ region, offset = 0, length = region.length - offset }: ScatterGatherElement) {
  if (!Number.isSafeInteger(offset) || !Number.isSafeInteger(length) || offset < 0 || length < 0)
    throw new UsageError(`offset and length are whole numbers from 0, not ${offset} and ${length}`)
  if (offset + length > region.length)
    throw new UsageError(`bytes ${offset}…${offset + length} are outside of a region of ${region.length}`)
  if (region.closed) throw new UsageError(`${region.description} is closed`)
  return { region, offset, length }
}
