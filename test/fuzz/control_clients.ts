// The state of the clients of control_session_fuzz.ts: their connections, of which the server has the other end, and
// sessions.

import type { ControlConnection } from '../../packages/swap-server/dist/protocol/control-connection.js'
import { control } from '../../packages/swap-server/dist/protocol/messages.js'
import type { Transcript } from '../../packages/swap-server/dist/protocol/proof.js'
import { check, context } from './control_world.js'

/** A session, as its clients know it. */
export interface Session {
  readonly id: number
  readonly token: Uint8Array
  readonly tenant: string
  connection: Connection
  over: boolean
}

/** One connection, the server's end of it, and what its client knows. */
export class Connection implements ControlConnection {
  readonly context = context
  readonly peerUri = 'iwarp://192.0.2.1:7'
  readonly channelBinding = Buffer.alloc(32, 3)
  readonly memory = 80 * 1024
  readonly closed: Promise<undefined>
  /** what the client answers when the server asks */
  readonly replies: Buffer[] = []
  open = true
  /** the Hello that got a challenge, and what both ends know since */
  hello: control.Hello.$Properties | undefined
  transcript: Transcript | undefined
  /** It has sent the one proof that is right. */
  proved = false
  session: Session | undefined
  #answer: ((request: { readonly data: Uint8Array }) => Uint8Array | Promise<Uint8Array>) | undefined
  #end: (reason: undefined) => void = () => {}

  constructor() {
    this.closed = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  handle(answer: (request: { readonly data: Uint8Array }) => Uint8Array | Promise<Uint8Array>): void {
    this.#answer = answer
  }

  async request(bytes: Uint8Array): Promise<Uint8Array> {
    const { body } = control.ServerRequest.decode(bytes)
    check(body !== undefined, 'the server asks nothing')
    const reply = this.replies.shift()
    if (reply === undefined || !this.open) throw new Error('no answer')
    return reply
  }

  async close(): Promise<void> {
    this.open = false
    this.#end(undefined)
  }

  ask(bytes: Uint8Array): Uint8Array | Promise<Uint8Array> {
    check(this.#answer !== undefined, 'a session answers its connection')
    return this.#answer({ data: bytes })
  }
}
