// A peer's data before there is a connection, and the contents of a ring's control frames: the private data
// of connect, accept and reject (on iWARP of MPA frames), of ring and data connections, offers, progress and
// errors. Accepted data are within their limits and are what an honest peer would have written; the rest is
// refused, with a reason.
import { ConnectionRejectedError, VerbsError } from '@rdmakit/verbs'
import { decodeError, encodeError } from '../../packages/ring-transport/dist/requests/remote-error.js'
import {
  applicationData,
  channelBinding,
  decodeHandshake,
  decodeRefusal,
  encodeHandshake,
  encodeRefusal,
  type Handshake,
  isRingRequest,
  LONGEST_UNIT,
  MAX_APPLICATION_DATA,
  MAX_LOG2_CAPACITY,
  MAX_LONGEST,
  MAX_RECEIVE_DEPTH,
  MIN_LOG2_CAPACITY,
  MIN_RECEIVE_DEPTH,
} from '../../packages/ring-transport/dist/setup/handshake.js'
import { VERSIONS, Windows } from '../../packages/ring-transport/dist/setup/ring-layout.js'
import {
  decodeOffer,
  decodeProgress,
  encodeOffer,
  encodeProgress,
} from '../../packages/ring-transport/dist/transfer/format.js'
import {
  dataConnectionData,
  parseDataConnection,
  TOKEN_BYTES,
} from '../../packages/swap-server/dist/protocol/messages.js'
import { check, Input } from './control_world.js'

const isWhole = (value: number) => Number.isSafeInteger(value) && value >= 0
const same = (one: Uint8Array, other: Uint8Array) => Buffer.compare(one, other) === 0

/** What an honest end may have written. */
function honest(input: Input): Handshake {
  const log2Capacity = MIN_LOG2_CAPACITY + (input.byte() % (MAX_LOG2_CAPACITY - MIN_LOG2_CAPACITY + 1))
  const epoch = input.two()
  const version = VERSIONS[input.byte() % VERSIONS.length] ?? 2
  return {
    version,
    longest: version === 2 ? 0 : (epoch % (MAX_LONGEST / LONGEST_UNIT + 1)) * LONGEST_UNIT,
    writeWithImmediate: (input.byte() & 1) === 1,
    windows: Windows.of(log2Capacity, version, 'iwarp'),
    receiveDepth: MIN_RECEIVE_DEPTH + (input.two() % (MAX_RECEIVE_DEPTH - MIN_RECEIVE_DEPTH + 1)),
    remoteKey: input.two() * 65_537,
    address: BigInt(1 + input.two()) << 26n,
    session: epoch === 0 ? undefined : { id: (epoch + 1).toString(16).padStart(16, '0'), epoch },
    applicationData: input.take(input.byte() % (MAX_APPLICATION_DATA + 1)),
  }
}

function handshake(bytes: Uint8Array): void {
  let taken: Handshake
  try {
    taken = decodeHandshake(bytes, 'fuzz')
  } catch (failure) {
    check(failure instanceof VerbsError && failure.code === 'EPROTO', 'what is refused breaks the protocol')
    check(/^[\x20-\x7e]+$/.test(failure.message), 'a refusal has a sentence')
    return
  }
  const { windows, receiveDepth, remoteKey, address, session, applicationData: data } = taken
  check(isRingRequest(bytes), 'what is taken asks for a ring')
  const { log2Capacity } = windows
  check(windows.log2Of(0) >= MIN_LOG2_CAPACITY && log2Capacity <= MAX_LOG2_CAPACITY, 'a ring has a size')
  check(receiveDepth >= MIN_RECEIVE_DEPTH && receiveDepth <= MAX_RECEIVE_DEPTH, 'there is a depth')
  check(isWhole(remoteKey) && remoteKey < 2 ** 32, 'a key has 32 bits')
  check(address > 0n && address + BigInt(windows.bytes) <= 1n << 64n, 'a ring is memory')
  check(session === undefined || (/^[0-9a-f]{16}$/.test(session.id) && session.epoch > 0), 'a session is one')
  check(data.length <= MAX_APPLICATION_DATA, 'the application has its place')
  check(same(applicationData(bytes), data), 'and finds it')
  const again = encodeHandshake(taken)
  check(same(again, bytes.subarray(0, again.length)), 'it is what an honest end would have said')
  check(
    same(channelBinding(again, bytes), channelBinding(bytes, again)),
    'what pads it is not part of the channel',
  )
}

function refusal(bytes: Uint8Array): void {
  const reason = decodeRefusal(bytes)
  if (reason === undefined) return
  check(/^[\x20-\x7e]{0,48}$/.test(reason), 'a reason can be shown')
  check(decodeRefusal(encodeRefusal(reason)) === reason, 'and said again')
  check(new ConnectionRejectedError('fuzz', bytes, reason).message.includes(reason), 'and is told')
}

function dataConnection(bytes: Uint8Array): void {
  const said = parseDataConnection(bytes)
  if (said === undefined) return
  const { token, takeOver } = said
  check(token.length === TOKEN_BYTES && isWhole(takeOver.number), 'a data connection names its session')
  const again = dataConnectionData(token, takeOver)
  // Number 0 has two forms; no honest end uses the longer one.
  if (takeOver.number > 0) check(same(again, bytes.subarray(0, again.length)), 'as an honest client would')
}

function frame(bytes: Buffer): void {
  const offer = decodeOffer(bytes)
  if (typeof offer !== 'string') {
    check(isWhole(offer.length) && offer.address + BigInt(offer.length) <= 1n << 64n, 'an offer is of memory')
    check(same(encodeOffer(offer), bytes), 'and what an honest end would offer')
  } else check(offer.length > 0, 'what is wrong with it is said')
  const progress = decodeProgress(bytes)
  if (progress !== undefined && Number.isSafeInteger(progress))
    check(same(encodeProgress(progress), bytes), 'a progress is one')
  const failure = decodeError({ copy: () => Buffer.from(bytes) })
  check(/^[A-Z][A-Z0-9_]{1,31}$/.test(failure.code) && failure.message.length <= 1024, 'an error has a code')
  check(
    decodeError({ copy: () => Uint8Array.from(encodeError(failure)) }).code === failure.code,
    'and keeps it',
  )
}

export async function fuzz(bytes: Buffer): Promise<void> {
  const input = new Input(bytes)
  const what = input.byte()
  if ((what & 7) === 0) {
    // An honest one with something wrong in it, and padded as RoCE does.
    const said = Buffer.concat([encodeHandshake(honest(input)), Buffer.alloc(what >> 3)])
    while (!input.empty) {
      const at = input.byte() % said.length
      said[at] = (said[at] ?? 0) ^ input.byte()
    }
    return handshake(said)
  }
  const rest = input.take(bytes.length)
  if ((what & 7) === 1) handshake(rest)
  else if ((what & 7) === 2) refusal(rest)
  else if ((what & 7) === 3) dataConnection(rest)
  else frame(rest)
}
