import protobuf from 'protobufjs/minimal.js'
import { rdmakit } from '../generated/control.js'

// 64-bit fields are plain numbers, exact below 2^53: sizes, and addresses of user space (below 2^47).
protobuf.util.Long = undefined as never
protobuf.configure()

export import control = rdmakit.swap.v1

/** Version of the control protocol. */
export const PROTOCOL_VERSION = 1

/** Slabs that one Allocate may ask for. */
export const MAX_SLABS_PER_REQUEST = 64

/** Slabs in one ListReply at most. */
export const MAX_LISTED_SLABS = 256

/** Bytes of a session's token. */
export const TOKEN_BYTES = 16

/** Start of the private data of a data connection: "RKPG", then version 1, then three zero bytes. */
const DATA_MAGIC = Buffer.from([0x52, 0x4b, 0x50, 0x47, 1, 0, 0, 0])

/** The private data with which a data connection of a session connects (24 bytes). */
export function dataConnectionData(token: Uint8Array): Uint8Array {
  return Buffer.concat([DATA_MAGIC, token])
}

/** The token in the private data of a data connection; undefined when it is something else. */
export function dataConnectionToken(privateData: Uint8Array): Buffer | undefined {
  const bytes = Buffer.from(privateData.buffer, privateData.byteOffset, privateData.byteLength)
  const end = DATA_MAGIC.length + TOKEN_BYTES
  if (bytes.length < end || !bytes.subarray(0, DATA_MAGIC.length).equals(DATA_MAGIC)) return undefined
  return Buffer.from(bytes.subarray(DATA_MAGIC.length, end))
}
