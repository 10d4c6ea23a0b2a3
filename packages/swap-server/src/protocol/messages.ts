import { rdmakit } from '../../generated/control.js'
import { INSTANCE_BYTES, NO_TAKE_OVER, type TakeOver, takeOverOf } from './take-over-number.js'

export import control = rdmakit.swap.v1

/** Version of the control protocol: take-overs have numbers, and a proof of a key is good on its own connection only. */
export const PROTOCOL_VERSION = 2

/**
 * The one before. A client without a key has nothing to prove, and says this, so that it gets on with older servers. A
 * client with a key that says it is an older one; no newer one takes a proof of it.
 */
export const UNBOUND_VERSION = 1

/** Slabs that one Allocate may ask for. */
export const MAX_SLABS_PER_REQUEST = 64

/**
 * How long a client waits for the answer to an Allocate. Pinning a slab takes the server about 10 ms of a fast machine and
 * a second of an emulated one.
 */
export const ALLOCATE_TIMEOUT_MS = 60_000

/** Slabs in one ListReply at most. */
export const MAX_LISTED_SLABS = 256

/** Bytes of a session's token. */
export const TOKEN_BYTES = 16

/** Start of the private data of a data connection: "RKPG", then the version, then three zero bytes. */
const DATA_MAGIC = Buffer.from('RKPG')
const DATA_START = DATA_MAGIC.length + 4
/** The token alone, which means {@link NO_TAKE_OVER}. */
const DATA_VERSION = 1
/** The token, then the number of the take-over, little-endian, then its instance. */
const DATA_VERSION_TAKE_OVER = 2

/** The private data with which a data connection of a session connects (24 or 40 bytes). */
export function dataConnectionData(token: Uint8Array, takeOver: TakeOver = NO_TAKE_OVER): Uint8Array {
  const start = (version: number) => Buffer.concat([DATA_MAGIC, Buffer.of(version, 0, 0, 0)])
  if (takeOver.number === 0) return Buffer.concat([start(DATA_VERSION), token])
  const number = Buffer.alloc(8)
  number.writeBigUInt64LE(BigInt(takeOver.number))
  return Buffer.concat([start(DATA_VERSION_TAKE_OVER), token, number, takeOver.instance])
}

/** Parses the private data of a data connection; undefined when it is something else. */
export function parseDataConnection(
  privateData: Uint8Array,
): { readonly token: Buffer; readonly takeOver: TakeOver } | undefined {
  if (!DATA_MAGIC.every((byte, at) => privateData[at] === byte)) return undefined
  // A copy, for it is the peer's.
  const bytes = Buffer.from(privateData)
  const [version] = bytes.subarray(DATA_MAGIC.length)
  const end = DATA_START + TOKEN_BYTES
  if (bytes.subarray(DATA_MAGIC.length + 1, DATA_START).some((byte) => byte !== 0)) return undefined
  const token = bytes.subarray(DATA_START, end)
  if (version === DATA_VERSION) return bytes.length < end ? undefined : { token, takeOver: NO_TAKE_OVER }
  if (version !== DATA_VERSION_TAKE_OVER || bytes.length < end + 8 + INSTANCE_BYTES) return undefined
  const number = Number(bytes.readBigUInt64LE(end))
  const takeOver = takeOverOf({ number, instance: bytes.subarray(end + 8, end + 8 + INSTANCE_BYTES) })
  return takeOver && { token, takeOver }
}
