import { createHash } from 'node:crypto'
import { VerbsError } from '@rdmakit/verbs'
import { VERSIONS, type Version, Windows } from './ring-layout.js'

/**
 * Links the successive connections of one client. The server breaks an older connection of a session when one with a
 * higher epoch arrives, and refuses an epoch that is not higher.
 */
export interface Session {
  /** 16 hexadecimal digits, not all zero; a client chooses it at random */
  readonly id: string
  /** 1 … 2^32 - 1, higher with each connection of the session */
  readonly epoch: number
}

/**
 * What two ends tell each other in the private data of connect and accept, big-endian:
 *
 * ```
 *  0  u32  magic 'rdkR'
 *  4  u8   version of the frames: 2, 3, whose are shorter, or 4 (native/ring/wire/frame_format.h); the acceptor repeats it
 *  5  u8   flags: 1 = this end can send and receive RDMA WRITE WITH IMMEDIATE
 *  6  u8   log2 of the ring's capacity in bytes
 *  7  u8   length of the application's data, 0 … 20; from version 4 on, in its upper three bits, windows of the ring, less one
 *  8  u16  notifications that this end takes before it must return credit
 * 10  u16  the longest message that this end takes in parts, in units of 64 KiB; zero in version 2, which has none
 * 12  u32  rkey of the ring
 * 16  u64  address of the ring
 * 24  u64  session of the connecting end, 0 for none; the acceptor repeats it
 * 32  u32  epoch in the session, from 1; 0 without a session; repeated likewise
 * 36  …    the application's data
 * ```
 *
 * It fits the 56 bytes that a connect carries on InfiniBand and RoCE (rdma_connect(3)).
 */
export interface Handshake {
  readonly version: Version
  readonly writeWithImmediate: boolean
  readonly windows: Windows
  readonly receiveDepth: number
  /** bytes of the longest message that this end takes in parts, a multiple of {@link LONGEST_UNIT}; 0 for none */
  readonly longest: number
  readonly remoteKey: number
  readonly address: bigint
  readonly session: Session | undefined
  readonly applicationData: Uint8Array
}

const MAGIC = 0x72646b52
const HEADER = 36
/** of the byte that says how long the application's data is: where the windows are */
const WINDOWS_SHIFT = 5
/** what tells a ring request and its version, whatever that is */
const PREFIX = 5
const FLAG_WRITE_WITH_IMMEDIATE = 1
/** marks a refusal in the place of the flags */
const REFUSAL = 0xff

/** bytes, of which the handshake counts what an end takes in parts */
export const LONGEST_UNIT = 65_536
/** bytes of a message in parts, whatever its ends would take */
export const MAX_LONGEST = 2 ** 26

export const MAX_APPLICATION_DATA = 20
export const MAX_EPOCH = 0xffff_ffff
/** 4 KiB … 64 MiB: a credit names 20 bits of grains of 64 bytes (see native/ring/wire/wire.h) */
export const MIN_LOG2_CAPACITY = 12
export const MAX_LOG2_CAPACITY = 26
/** a credit names 10 bits of notifications, and half of them must tell before from after */
export const MIN_RECEIVE_DEPTH = 8
export const MAX_RECEIVE_DEPTH = 512

/** Whether private data of a connection request asks for a ring connection, of whatever version. */
export function isRingRequest(privateData: Uint8Array): boolean {
  return privateData.length >= PREFIX && view(privateData).getUint32(0) === MAGIC
}

/**
 * The application's part of a ring connection's private data.
 * @throws VerbsError EPROTO when it is not a valid ring handshake
 */
export function applicationData(privateData: Uint8Array): Uint8Array {
  return decodeHandshake(privateData, 'connection request').applicationData
}

/** The contents of a ring connection request, before it is answered. */
export interface RingRequest {
  /** bytes of the peer's ring; the accepting end keeps a staging region for it, a third larger where it has windows */
  readonly capacity: number
  readonly applicationData: Uint8Array
}

/** @returns undefined when private data is not a valid ring handshake */
export function ringRequest(privateData: Uint8Array): RingRequest | undefined {
  if (!isRingRequest(privateData)) return undefined
  try {
    const { windows, applicationData } = decodeHandshake(privateData, 'connection request')
    return { capacity: 2 ** windows.log2Capacity, applicationData }
  } catch {
    return undefined
  }
}

/** Whether an end takes a ring as large as its peer's is. */
export function takesRing({ windows }: Handshake, maxPeerCapacity: number): boolean {
  return 2 ** windows.log2Capacity <= maxPeerCapacity
}

export function encodeHandshake(handshake: Handshake): Uint8Array {
  const { applicationData } = handshake
  const bytes = new Uint8Array(HEADER + applicationData.length)
  const fields = view(bytes)
  fields.setUint32(0, MAGIC)
  fields.setUint8(4, handshake.version)
  fields.setUint8(5, handshake.writeWithImmediate ? FLAG_WRITE_WITH_IMMEDIATE : 0)
  fields.setUint8(6, handshake.windows.log2Capacity)
  fields.setUint8(7, applicationData.length | ((handshake.windows.count - 1) << WINDOWS_SHIFT))
  fields.setUint16(8, handshake.receiveDepth)
  fields.setUint16(10, handshake.longest / LONGEST_UNIT)
  fields.setUint32(12, handshake.remoteKey)
  fields.setBigUint64(16, handshake.address)
  if (handshake.session !== undefined) {
    fields.setBigUint64(24, BigInt(`0x${handshake.session.id}`))
    fields.setUint32(32, handshake.session.epoch)
  }
  bytes.set(applicationData, HEADER)
  return bytes
}

/**
 * @param versions those that this end speaks
 * @throws VerbsError EPROTO naming the field that is wrong
 */
export function decodeHandshake(
  bytes: Uint8Array,
  object: string,
  versions: readonly Version[] = VERSIONS,
): Handshake {
  const wrong = (what: string) =>
    new VerbsError('EPROTO', 'rdma_connect', object, `the peer's ring handshake has ${what}`)
  if (!isRingRequest(bytes)) throw wrong('no magic number: it is not a ring transport')
  const fields = view(bytes)
  const version = versions.find((one) => one === fields.getUint8(4))
  if (version === undefined)
    throw wrong(`version ${fields.getUint8(4)}, this end speaks ${versions.join(' and ')}`)
  if (bytes.length < HEADER) throw wrong(`${bytes.length} bytes, at least ${HEADER} belong there`)
  const flags = fields.getUint8(5)
  if ((flags & ~FLAG_WRITE_WITH_IMMEDIATE) !== 0) throw wrong(`unknown flags 0x${flags.toString(16)}`)
  const log2Capacity = fields.getUint8(6)
  if (log2Capacity < MIN_LOG2_CAPACITY || log2Capacity > MAX_LOG2_CAPACITY)
    throw wrong(`a ring of 2^${log2Capacity} bytes`)
  const count = version < 4 ? 1 : 1 + (fields.getUint8(7) >> WINDOWS_SHIFT)
  const windows = new Windows(log2Capacity, count)
  if (windows.log2Of(0) < MIN_LOG2_CAPACITY)
    throw wrong(`${count} windows in a ring of 2^${log2Capacity} bytes`)
  const length = dataLength(fields)
  if (length > MAX_APPLICATION_DATA || HEADER + length > bytes.length)
    throw wrong(`${length} bytes of application data in ${bytes.length}`)
  const receiveDepth = fields.getUint16(8)
  if (receiveDepth < MIN_RECEIVE_DEPTH || receiveDepth > MAX_RECEIVE_DEPTH)
    throw wrong(`a receive depth of ${receiveDepth}`)
  const longest = fields.getUint16(10) * LONGEST_UNIT
  if (longest > (version === 2 ? 0 : MAX_LONGEST)) throw wrong(`messages in parts of up to ${longest} bytes`)
  const address = fields.getBigUint64(16)
  if (address === 0n || (address & 63n) !== 0n || address + BigInt(windows.bytes) > 1n << 64n)
    throw wrong(`a ring at address 0x${address.toString(16)}`)
  const session = fields.getBigUint64(24)
  const epoch = fields.getUint32(32)
  if ((session === 0n) !== (epoch === 0)) throw wrong(`epoch ${epoch} of session ${session.toString(16)}`)
  return {
    version,
    writeWithImmediate: (flags & FLAG_WRITE_WITH_IMMEDIATE) !== 0,
    windows,
    receiveDepth,
    longest,
    remoteKey: fields.getUint32(12),
    address,
    session: session === 0n ? undefined : { id: session.toString(16).padStart(16, '0'), epoch },
    applicationData: bytes.slice(HEADER, HEADER + length),
  }
}

/**
 * What tells a connection from every other one: SHA-256 of both ends' handshakes as they were sent.
 * @param connect of the connecting end; what a device has padded it with does not count
 * @param accept of the accepting end, likewise
 */
export function channelBinding(connect: Uint8Array, accept: Uint8Array): Uint8Array {
  const hash = createHash('sha256').update(`rdmakit ring ${view(connect).getUint8(4)}\0`)
  // Each says its own length, so no two pairs are the same bytes.
  for (const bytes of [connect, accept]) hash.update(bytes.subarray(0, HEADER + dataLength(view(bytes))))
  return hash.digest()
}

/** Private data of a reject that says why, at most 48 bytes of ASCII, and which version this end speaks. */
export function encodeRefusal(reason: string, version: Version = VERSIONS[0]): Uint8Array {
  const bytes = new Uint8Array(6 + Math.min(reason.length, 48))
  view(bytes).setUint32(0, MAGIC)
  view(bytes).setUint8(4, version)
  view(bytes).setUint8(5, REFUSAL)
  for (let at = 6; at < bytes.length; at++) bytes[at] = reason.charCodeAt(at - 6)
  return bytes
}

/** The reason in a reject's private data, or undefined when a ring transport did not write it. */
export function decodeRefusal(bytes: Uint8Array): string | undefined {
  if (refusedBy(bytes) === undefined) return undefined
  // Only printable ASCII of the peer's reaches an error message.
  return String.fromCharCode(...bytes.subarray(6, 54)).replace(/[^ -~]/g, '')
}

/** The version of who wrote a reject's private data, or undefined when a ring transport did not. */
export function refusedBy(bytes: Uint8Array): number | undefined {
  if (bytes.length < 6 || view(bytes).getUint32(0) !== MAGIC || bytes[5] !== REFUSAL) return undefined
  return bytes[4]
}

/** Bytes of the application's data. */
function dataLength(fields: DataView): number {
  const length = fields.getUint8(7)
  return fields.getUint8(4) < 4 ? length : length & (2 ** WINDOWS_SHIFT - 1)
}

function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}
