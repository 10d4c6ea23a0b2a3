// Validation of a server's messages by the client before it uses them: a server may be broken, or hostile.
import { printable } from '@rdmakit/operator-kit'
import {
  control,
  MAX_LISTED_SLABS,
  PROTOCOL_VERSION,
  TOKEN_BYTES,
  UNBOUND_VERSION,
} from '../protocol/messages.js'

/** A slab of a server's memory, as one-sided operations name it. */
export interface RemoteSlab {
  readonly id: number
  readonly address: bigint
  readonly remoteKey: number
  /** bytes */
  readonly length: number
}

/** The server refused a request; `code` is an errno name, e.g. `ENOSPC`. */
export class SwapServerError extends Error {
  override readonly name = 'SwapServerError'
  constructor(
    readonly code: string,
    message: string,
    /** what came with it: may prove that the server has the key */
    readonly mac?: Uint8Array,
  ) {
    super(message)
  }
}

/** Per second; 0: no limit. */
export interface SessionLimits {
  readonly bytes: number
  readonly operations: number
}

/** What a HelloReply says. */
export interface Welcome {
  readonly epoch: string
  readonly session: number
  readonly token: Uint8Array
  /** bytes */
  readonly slabSize: number
  readonly totalSlabs: number
  readonly freeSlabs: number
  /** milliseconds of silence after which it ends the session; 0: it does not say */
  readonly sessionTimeout: number
  /** milliseconds */
  readonly linger: number
  readonly limits: SessionLimits
  /** it compares the numbers of take-overs */
  readonly fences: boolean
  readonly resumed: boolean
}

/** The 64-bit number `value`, of which JavaScript knows the exact value; undefined when it does not. */
export function countOf(value: number | null | undefined): number | undefined {
  const count = Number(value ?? 0)
  return Number.isSafeInteger(count) && count >= 0 ? count : undefined
}

/** @throws SwapServerError the server's refusal; EPROTO when it says nothing that can be understood */
export function responseOf(bytes: Uint8Array): control.Response {
  let response: control.Response
  try {
    response = control.Response.decode(bytes)
  } catch {
    throw new SwapServerError('EPROTO', "the server's answer cannot be decoded")
  }
  if (!response.failure) return response
  const { code, message, mac } = response.failure
  // They are shown to people, and programs decide by them.
  throw new SwapServerError(
    /^E[A-Z0-9]{1,30}$/.test(code ?? '') ? (code as string) : 'EPROTO',
    printable(message ?? '').slice(0, 300) || 'the server gave no reason',
    mac ?? undefined,
  )
}

/** @throws SwapServerError EPROTO when it cannot be decoded */
export function helloReplyOf(bytes: Uint8Array | null | undefined): control.HelloReply {
  try {
    return control.HelloReply.decode(bytes ?? new Uint8Array())
  } catch {
    throw new SwapServerError('EPROTO', "the server's answer to hello cannot be decoded")
  }
}

/**
 * @param named whether the client has named a session that it resumes
 * @throws SwapServerError EPROTO when it is no session that can be worked with
 */
export function welcomeOf(hello: control.HelloReply.$Properties, named: boolean): Welcome {
  const epoch = hello.epoch ?? ''
  const token = hello.token ?? new Uint8Array()
  const slabSize = Number(hello.slabSize ?? 0)
  const [session, totalSlabs, freeSlabs] = [hello.session, hello.totalSlabs, hello.freeSlabs].map(countOf)
  const wrong =
    hello.version !== PROTOCOL_VERSION && hello.version !== UNBOUND_VERSION
      ? `its version, ${hello.version},`
      : !/^[0-9a-f]{16}$/.test(epoch)
        ? 'its epoch'
        : token.length !== TOKEN_BYTES
          ? "the session's token"
          : slabSize < 2 ** 20 || slabSize > 2 ** 32 || !Number.isInteger(Math.log2(slabSize))
            ? 'the size of its slabs'
            : undefined
  if (wrong !== undefined) throw new SwapServerError('EPROTO', `${wrong} is unknown to this client`)
  if (session === undefined || totalSlabs === undefined || freeSlabs === undefined)
    throw new SwapServerError('EPROTO', 'the hello reply contains an invalid number')
  const limits = limitsOf(hello.limits)
  const [sessionTimeout, linger] = [hello.sessionTimeoutMs ?? 0, hello.lingerMs ?? 0]
  const fences = hello.takeOver != null
  const resumed = hello.resumed === true
  if (resumed && !named)
    throw new SwapServerError('EPROTO', 'the server resumed a session that was not named')
  const memory = { slabSize, totalSlabs, freeSlabs }
  return { epoch, session, token, ...memory, sessionTimeout, linger, limits, fences, resumed }
}

/** A server that speaks nonsense of limits sets none. */
export function limitsOf(limits: control.Limits.$Properties | null | undefined): SessionLimits {
  return {
    bytes: countOf(limits?.bytesPerSecond) ?? 0,
    operations: countOf(limits?.operationsPerSecond) ?? 0,
  }
}

/** @throws SwapServerError EPROTO when it is no slab of `slabSize` bytes that can be written to */
export function slabOf(slab: control.Slab.$Properties, slabSize: number): RemoteSlab {
  const [id, address] = [slab.id, slab.address].map(countOf)
  const { rkey, length } = slab
  if (Number(length) !== slabSize || rkey == null || !id || !address)
    throw new SwapServerError('EPROTO', `the server sent an invalid description of slab ${slab.id}`)
  return { id, address: BigInt(address), remoteKey: rkey, length: slabSize }
}

/**
 * All slabs of a session, ascending by id, page by page.
 * @param ask for those with an id above `after` @param slabSize bytes @param limit a server that lists more is not believed
 * @throws as SwapServerSession.list
 */
export async function listSlabs(
  ask: (after: number) => Promise<control.ListReply.$Properties | null | undefined>,
  slabSize: number,
  limit: number,
  signal: AbortSignal | undefined,
): Promise<RemoteSlab[]> {
  const slabs: RemoteSlab[] = []
  for (;;) {
    signal?.throwIfAborted()
    const page = ((await ask(slabs.at(-1)?.id ?? 0))?.slabs ?? []).map((slab) => slabOf(slab, slabSize))
    for (const slab of page) {
      if (slab.id <= (slabs.at(-1)?.id ?? 0))
        throw new SwapServerError('EPROTO', 'the server listed slabs out of order')
      slabs.push(slab)
    }
    if (slabs.length > limit)
      throw new SwapServerError('EPROTO', `the server listed more than the ${limit} slabs that there can be`)
    if (page.length < MAX_LISTED_SLABS) return slabs
  }
}
