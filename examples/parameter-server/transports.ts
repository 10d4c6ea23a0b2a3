import { net } from './net.js'
import { ring } from './ring.js'
import type { Transport } from './transport.js'
import { zeromq } from './zeromq.js'

/** By the scheme of a URI: `zeromq+tcp:`, `zeromq+ipc:`, `tcp:` and `unix:` (Node net), else the ring. */
export function transportOf(uri: string): Transport {
  if (uri.startsWith('zeromq+')) return zeromq
  if (uri.startsWith('tcp:') || uri.startsWith('unix:')) return net
  return ring
}
