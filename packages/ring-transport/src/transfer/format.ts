/**
 * What large messages say on the wire, little-endian as frame headers are. The frame's correlation is the
 * number of the transfer, given by who offers; its immediate is the application's in an offer.
 *
 * ```
 * offer                                        settled, immediate 0: the end of the transfer
 *  0  u64  address                              nothing: all has been read
 *  8  u64  length                               `CODE message`: why not (as in an error frame)
 * 16  u32  remote key                          settled, immediate 1: how far it is
 * 20  u32  bytes after which the reader         0  u64  bytes read so far
 *          tells how far it is; 0: never
 * ```
 *
 * An offer of all zeros withdraws the one of its correlation: the reader stops, and settles it if it has
 * not yet.
 */
export interface OfferFields {
  readonly address: bigint
  /** bytes, 0 to withdraw */
  readonly length: number
  readonly remoteKey: number
  readonly progressEvery: number
}

const OFFER_BYTES = 24
const PROGRESS_BYTES = 8

/** the immediate of a settled frame that tells how far a transfer is */
export const PROGRESS = 1

/** offers that one end has outstanding at most; one more breaks the protocol */
export const MAX_OFFERS = 64

export const WITHDRAWAL: Uint8Array = new Uint8Array(OFFER_BYTES)

export function encodeOffer({ address, length, remoteKey, progressEvery }: OfferFields): Uint8Array {
  const bytes = new Uint8Array(OFFER_BYTES)
  const fields = new DataView(bytes.buffer)
  fields.setBigUint64(0, address, true)
  fields.setBigUint64(8, BigInt(length), true)
  fields.setUint32(16, remoteKey, true)
  fields.setUint32(20, progressEvery, true)
  return bytes
}

/** The fields of an offer, or a description of the mistake in it. */
export function decodeOffer(bytes: Uint8Array): OfferFields | string {
  if (bytes.length !== OFFER_BYTES) return `an offer of ${bytes.length} bytes`
  const fields = view(bytes)
  const address = fields.getBigUint64(0, true)
  const length = fields.getBigUint64(8, true)
  const remoteKey = fields.getUint32(16, true)
  const progressEvery = fields.getUint32(20, true)
  if (length === 0n && (address !== 0n || remoteKey !== 0 || progressEvery !== 0))
    return 'an offer of nothing'
  if (length > BigInt(Number.MAX_SAFE_INTEGER)) return `an offer of ${length} bytes`
  if (address + length > 1n << 64n) return 'an offer of memory beyond the last address'
  return { address, length: Number(length), remoteKey, progressEvery }
}

export function encodeProgress(transferred: number): Uint8Array {
  const bytes = new Uint8Array(PROGRESS_BYTES)
  new DataView(bytes.buffer).setBigUint64(0, BigInt(transferred), true)
  return bytes
}

/** The bytes of a progress, undefined when it is malformed. */
export function decodeProgress(bytes: Uint8Array): number | undefined {
  return bytes.length === PROGRESS_BYTES ? Number(view(bytes).getBigUint64(0, true)) : undefined
}

function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}
