// The ring transport over shm://, iwarp:// or rdma://, with a thread that takes completions for the program.
import { Poller, type PollerMode, RingConnection, RingServer } from '@rdmakit/ring-transport'
import { ConnectionId, Listener } from '@rdmakit/verbs'
import type { Endpoint, Receiver, Transport } from './endpoint.js'

/** A ring holds this many messages of the size that is measured, and at least the default of 1 MiB. */
const MESSAGES = 4
const LEAST_CAPACITY = 2 ** 20

export interface RingChoice {
  readonly mode: PollerMode
  /** bytes of a message */
  readonly size: number
  /** whether the receiver copies each message out of the ring before it looks at it */
  readonly copies: boolean
}
