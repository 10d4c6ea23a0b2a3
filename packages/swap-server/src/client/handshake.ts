// The beginning of a client's session: its messages, and its checks before it trusts the server.
import { type ConnectOptions, RingConnection } from '@rdmakit/ring-transport'
import { millisecondsOrNone } from '@rdmakit/verbs/internal'
import type { ControlConnection } from '../protocol/control-connection.js'
import { control, UNBOUND_VERSION } from '../protocol/messages.js'
import { meaningOfRefusal } from '../protocol/refusal.js'
import { ticketOf } from '../protocol/resume-ticket.js'
import { NO_TAKE_OVER } from '../protocol/take-over-number.js'
import { ClientAuthentication } from './authentication.js'
import { helloReplyOf, responseOf, SwapServerError } from './server-replies.js'
import { checkTimes, type SessionIdentity, type SessionOptions } from './session-options.js'

/** milliseconds that a server has for an answer */
export const REQUEST_TIMEOUT_MS = 5_000

/** A server asks little of a client, and gets 64 KiB to answer in. */
const CONTROL_CONNECTION = {
  capacity: 2 ** 16,
  receiveDepth: 16,
  sendDepth: 16,
  maxTransferMemory: 0,
} as const satisfies ConnectOptions

/**
 * @param identity of the session that is taken up, which the server knows before it gives the connection any memory
 * @throws UsageError: one of the options' times is none
 */
export function connectControl(
  uri: string,
  identity: SessionIdentity | undefined,
  options: SessionOptions,
): Promise<RingConnection> {
  checkTimes(options)
  const { largeAnswers, signal } = options
  return RingConnection.connect(uri, {
    ...CONTROL_CONNECTION,
    ...(largeAnswers && { capacity: 2 ** 20 }),
    ...(identity && { applicationData: ticketOf({ id: identity.session, token: identity.token }) }),
    ...(signal && { signal }),
  })
}

/**
 * Hello, and with a key Challenge and Proof.
 * @throws SwapServerError EACCES: one of the two ends does not have the other's key; EBADMSG: it says that a session is
 *   over, and does not prove to have the key
 */
export async function greet(
  connection: ControlConnection,
  identity: SessionIdentity | undefined,
  options: SessionOptions,
): Promise<control.HelloReply.$Properties> {
  const { tenant = '', key } = options
  if (key === undefined) return await introduce(connection, identity, options, undefined)
  const proving = new ClientAuthentication(
    tenant,
    typeof key === 'function' ? key() : key,
    connection.channelBinding,
  )
  try {
    return await introduce(connection, identity, options, proving)
  } catch (failure) {
    throw believed(failure, proving, identity)
  }
}

/**
 * The messages that are not believed from a peer without the key: they make a client give up its memory, or its
 * volume.
 */
function believed(
  failure: unknown,
  proving: ClientAuthentication,
  identity: SessionIdentity | undefined,
): unknown {
  if (!(failure instanceof SwapServerError) || identity === undefined) return failure
  const { code, message, mac } = failure
  const isVerdict = ['ended', 'fenced'].includes(meaningOfRefusal(code))
  if (!isVerdict || proving.acceptsRefusal(code, mac, identity.session)) return failure
  return new SwapServerError(
    'EBADMSG',
    `${message}; but the sender does not prove that it has the key: it is another server, or an older one`,
  )
}

async function introduce(
  connection: ControlConnection,
  identity: SessionIdentity | undefined,
  { client, linger = 0, takeOver = NO_TAKE_OVER, unattended = false, tenant = '' }: SessionOptions,
  proving: ClientAuthentication | undefined,
): Promise<control.HelloReply.$Properties> {
  const hello = {
    version: UNBOUND_VERSION,
    client: client ?? `pid ${process.pid}`,
    tenant,
    lingerMs: millisecondsOrNone('linger', linger),
    takeOver,
    ...(identity && { resume: { session: identity.session, token: identity.token, unattended } }),
    ...proving?.introduction,
  }
  const request = control.Request.encode({ hello }).finish()
  let response = responseOf(await connection.request(request, { timeout: REQUEST_TIMEOUT_MS }))
  if (response.challenge) {
    const proof = proving?.answer(response.challenge, request, identity?.session ?? 0)
    if (proof === undefined) throw new SwapServerError('EPROTO', 'the server sent a malformed challenge')
    response = await ask(connection, { proof }, REQUEST_TIMEOUT_MS)
  }
  const { hello: unproven, provenHello } = response
  if (proving === undefined && unproven) return unproven
  if (proving === undefined || (!unproven && !provenHello))
    throw new SwapServerError('EPROTO', 'the server did not answer hello')
  // Also one that proves it as version 1 did: a man in the middle may have relayed that.
  if (!provenHello || !proving.accepts(provenHello))
    throw new SwapServerError(
      'EACCES',
      'the server does not prove on this connection that it has the key of --key-file: it is another server, or has no --tenants with keys',
    )
  return helloReplyOf(provenHello.reply)
}

/** Sends a request. @throws SwapServerError: it is refused; VerbsError: it is not answered */
export async function ask(
  connection: ControlConnection,
  request: control.Request.$Properties,
  timeout: number,
  signal?: AbortSignal,
): Promise<control.Response> {
  return responseOf(await connection.request(control.Request.encode(request).finish(), { timeout, signal }))
}
