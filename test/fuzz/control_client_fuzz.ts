// The control plane's client, fed with whatever a server may answer and ask. The bytes of an input are what the
// program does with its session, and between that what the server says to it. Whatever that is, the session is
// one that can be worked with or a refusal that says why; slabs are memory that a server can have, each another.
import { VerbsError } from '@rdmakit/verbs'
import type { ClientControlConnection } from '../../packages/swap-server/dist/client/session-connections.js'
import {
  type RemoteSlab,
  type SessionIdentity,
  type SessionLimits,
  type SessionOptions,
  SwapServerSession,
} from '../../packages/swap-server/dist/index.js'
import { control } from '../../packages/swap-server/dist/protocol/messages.js'
import {
  boundTo,
  macOf,
  NONCE_BYTES,
  type Transcript,
} from '../../packages/swap-server/dist/protocol/proof.js'
import { Clock, check, context, Input, settle } from './control_world.js'

const MAX_STEPS = 64
const MAX_REQUESTS = 256
const ERRNO = /^E[A-Z0-9]+$/
/** A message that can be shown to people, on one line. */
const SENTENCE = /^[\x20-\x7e…–’“”]{1,600}$/

const key = { id: 'k', secret: Buffer.alloc(32, 7) }
const identity: SessionIdentity = { epoch: '0123456789abcdef', session: 5, token: Buffer.alloc(16, 1) }
const clock = new Clock()

/** The server's end: its answers come from the input. */
class HostileServer implements ClientControlConnection {
  readonly context = context
  readonly peerUri = 'iwarp://192.0.2.1:7'
  readonly channelBinding = Buffer.alloc(32, 3)
  readonly memory = 80 * 1024
  readonly closed: Promise<Error | undefined>
  readonly #input: Input
  #requests = 0
  #transcript: Transcript | undefined
  /** the last Hello, and the request that it came in */
  #hello: { readonly nonce: Uint8Array; readonly bytes: Uint8Array } | undefined
  #open = true
  #answer: ((request: { readonly data: Uint8Array }) => Uint8Array | Promise<Uint8Array>) | undefined
  #end: (reason: Error | undefined) => void = () => {}

  constructor(input: Input) {
    this.#input = input
    this.closed = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  get open(): boolean {
    return this.#open
  }

  ref(): void {}

  unref(): void {}

  handle(answer: (request: { readonly data: Uint8Array }) => Uint8Array | Promise<Uint8Array>): void {
    this.#answer = answer
  }

  async request(bytes: Uint8Array): Promise<Uint8Array> {
    const { body, hello } = control.Request.decode(bytes)
    check(body !== undefined, 'a client asks something')
    check(++this.#requests < MAX_REQUESTS, 'a client asks no more than it needs')
    if (hello) this.#hello = { nonce: hello.nonce ?? Buffer.alloc(NONCE_BYTES), bytes }
    if (this.#input.empty || !this.#open)
      throw new VerbsError('ETIMEDOUT', 'request', 'the peer', 'no answer')
    switch (this.#input.byte() & 3) {
      case 1:
        // One that has the key and is hostile all the same.
        return this.#proven(this.#input.message())
      case 2:
        return control.Response.encode({ challenge: { nonce: this.#challenge() } }).finish()
      default:
        return this.#input.message()
    }
  }

  async close(): Promise<void> {
    this.lose(undefined)
  }

  lose(reason: Error | undefined): void {
    this.#open = false
    this.#end(reason)
  }

  async ask(bytes: Uint8Array): Promise<void> {
    if (!this.#open || this.#answer === undefined) return
    const answer = control.ServerResponse.decode(await this.#answer({ data: bytes }))
    check(answer.body !== undefined, 'an answer says something')
    check((answer.activity?.idleMs?.length ?? 0) <= 256, 'an answer is no longer than the question')
  }

  #challenge(): Uint8Array {
    const serverNonce = Buffer.alloc(NONCE_BYTES, this.#input.byte())
    const { nonce, bytes } = this.#hello ?? { nonce: Buffer.alloc(NONCE_BYTES), bytes: Buffer.alloc(0) }
    const bound = boundTo(this.channelBinding, bytes)
    this.#transcript = { serverNonce, clientNonce: nonce, tenant: 'prod', keyId: key.id, bound }
    return serverNonce
  }

  #proven(bytes: Buffer): Uint8Array {
    let response: control.Response
    try {
      response = control.Response.decode(bytes)
    } catch {
      return bytes
    }
    if (this.#transcript === undefined || (!response.hello && !response.provenHello)) return bytes
    // Also one that is no HelloReply.
    const reply = response.hello
      ? control.HelloReply.encode(response.hello).finish()
      : (response.provenHello?.reply ?? Buffer.alloc(0))
    const mac = macOf(key.secret, 'server', this.#transcript, reply)
    return control.Response.encode({ provenHello: { reply, mac } }).finish()
  }
}

/** The result of a request to the session; undefined: it was refused, with a reason. */
async function outcome<Result>(doing: Promise<Result>): Promise<Result | undefined> {
  try {
    return await doing
  } catch (failure) {
    const { code, message } = failure as { code?: unknown; message?: unknown }
    if (!(failure instanceof Error) || typeof code !== 'string' || !ERRNO.test(code))
      throw new Error('a failure has the name of an errno', { cause: failure })
    if (typeof message !== 'string' || !SENTENCE.test(message))
      throw new Error('a failure has a sentence', { cause: failure })
    return undefined
  }
}

const isCount = (value: number) => Number.isSafeInteger(value) && value >= 0

function checkSession(session: SwapServerSession): void {
  const { slabSize, totalSlabs, freeSlabs, epoch, linger } = session
  check(
    Number.isInteger(Math.log2(slabSize)) && slabSize >= 2 ** 20 && slabSize <= 2 ** 32,
    'slabs have a size',
  )
  check(isCount(totalSlabs) && isCount(freeSlabs) && isCount(linger), 'counts are counts')
  check(/^[0-9a-f]{16}$/.test(epoch), 'an epoch is one')
  check(session.identity.token.length === 16 && isCount(session.identity.session), 'a session has a name')
}

function checkLimits({ bytes, operations }: SessionLimits): void {
  check(isCount(bytes) && isCount(operations), 'limits are counts')
}

function checkSlabs(session: SwapServerSession, slabs: readonly RemoteSlab[]): void {
  const ids = new Set<number>()
  for (const { id, address, remoteKey, length } of slabs) {
    check(Number.isSafeInteger(id) && id > 0 && !ids.has(id), 'a slab has an id of its own')
    ids.add(id)
    check(length === session.slabSize, 'a slab is as long as all of them')
    check(address > 0n && address + BigInt(length) <= 1n << 64n, 'a slab is memory')
    check(Number.isInteger(remoteKey) && remoteKey >= 0 && remoteKey < 2 ** 32, 'a slab has a key')
  }
}

/** @param handles the session answers at once; one that was resumed waits for its handler, or its end */
async function play(
  input: Input,
  session: SwapServerSession,
  server: HostileServer,
  handles: boolean,
): Promise<Promise<void>[]> {
  const limits: SessionLimits[] = []
  const asked: Promise<void>[] = []
  let slabs: RemoteSlab[] = []
  for (let step = 0; step < MAX_STEPS && !input.empty; step++) {
    switch (input.byte() & 7) {
      case 0: {
        const wanted = input.byte()
        const given = await outcome(session.allocate(wanted))
        check(given === undefined || given.length === wanted, 'all slabs or none')
        slabs.push(...(given ?? []))
        break
      }
      case 1: {
        const some = slabs.splice(0, input.byte())
        await outcome(session.free(some))
        break
      }
      case 2:
        await outcome(session.query())
        break
      case 3:
        clock.pass(1000)
        break
      case 4:
        asked.push(server.ask(input.message()))
        if (handles) await asked.at(-1)
        break
      case 5:
        session.meter(
          () => ({ bytes: 1, operations: 1 }),
          (given) => limits.push(given),
        )
        break
      case 6: {
        const listed = await outcome(session.list())
        if (listed === undefined) break
        check(listed.length <= session.totalSlabs, 'a client has no more slabs than there are')
        slabs = listed
        break
      }
      default:
        session.onServerRequest({ activity: (ids) => ids.map(() => 1), reclaim: (ids) => ids })
        handles = true
    }
    await settle()
    checkSession(session)
    checkSlabs(session, slabs)
  }
  for (const each of limits) checkLimits(each)
  return asked
}

export async function fuzz(bytes: Buffer): Promise<void> {
  const input = new Input(bytes)
  const how = input.byte()
  const server = new HostileServer(input)
  const options: SessionOptions = {
    heartbeatInterval: 1000,
    linger: (how & 4) === 0 ? 0 : 1000,
    ...((how & 1) === 0 ? {} : { tenant: 'prod', key }),
  }
  const taken = (how & 2) === 0 ? undefined : identity
  const session = await outcome(SwapServerSession.over(server.peerUri, server, taken, options))
  if (session === undefined) {
    await settle()
    check(!server.open, 'a connection without a session is closed')
    check(clock.timers === 0, 'no timer is left')
    return
  }
  checkSession(session)
  check(taken === undefined || session.epoch === taken.epoch, 'what is resumed is the session that was named')
  const asked = await play(input, session, server, taken === undefined)
  if ((how & 8) !== 0) server.lose(new Error('the peer is gone'))
  await session.close()
  await Promise.all(asked)
  check(SENTENCE.test(await session.lost), 'a loss has a reason')
  await settle()
  check(!server.open && clock.timers === 0, 'nothing is left of a session')
}
