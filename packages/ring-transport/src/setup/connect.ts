import { ConnectionId, UsageError } from '@rdmakit/verbs'
import type { RingLink } from '../link/ring-link.js'
import { connectLink } from './establish.js'
import { refusesCapacity, versionOfRefusal } from './link-errors.js'
import { type ConnectOptions, type Settings, settings } from './options.js'
import { USUAL_LOG2, type Version } from './ring-layout.js'

/** @see RingConnection.connect */
export async function connectFirst(
  uri: string | readonly string[],
  options: ConnectOptions,
): Promise<RingLink> {
  const chosen = settings(options)
  const uris = typeof uri === 'string' ? [uri] : uri
  if (uris.length === 0) throw new UsageError('connect needs an address')
  const failures: unknown[] = []
  for (const one of uris) {
    options.signal?.throwIfAborted()
    try {
      return await connectOne(one, chosen)
    } catch (failure) {
      failures.push(failure)
    }
  }
  throw failures.length === 1
    ? failures[0]
    : new AggregateError(failures, `none of ${uris.join(', ')} connects`)
}

/**
 * A peer that knows none of the newer versions refuses them, and is asked again in the words that it knows. So is one
 * that takes no ring as large as this end's is when nobody has chosen it.
 */
async function connectOne(uri: string, options: Settings): Promise<RingLink> {
  let chosen = options
  let [version, ...older] = chosen.wireVersions
  while (version !== undefined) {
    const id = await ConnectionId.resolve(uri, chosen.wait)
    try {
      return await connectLink(id, version, chosen)
    } catch (failure) {
      if (chosen.log2Capacity === undefined && refusesCapacity(failure)) {
        chosen = { ...chosen, log2Capacity: USUAL_LOG2 }
        continue
      }
      const known = older.indexOf(versionOfRefusal(failure) as Version)
      if (known < 0) throw failure
      ;[version, ...older] = older.slice(known)
    }
  }
  throw new UsageError('wireVersions is empty')
}
