import { lookup } from 'node:dns/promises'
import { isIP } from 'node:net'
import { milliseconds, within } from '../base/deferred.js'
import { VerbsError } from '../base/errors.js'

/**
 * @internal the addresses of a host, in the order to try them: its resolver's, but in turn of one family and the other,
 * so that a family that leads nowhere costs one attempt (RFC 8305, section 4; net.connect does the same). The path of a
 * socket is one itself. The lookup has a thread of libuv's pool, which others may keep busy: whoever waits for it does
 * not wait longer than `timeout` for that.
 * @throws UsageError for a bad timeout; VerbsError ENOTFOUND, ETIMEDOUT; the signal's reason
 */
export async function addressesOf(
  host: string,
  object: string,
  { signal, timeout }: { readonly signal?: AbortSignal | undefined; readonly timeout: number },
): Promise<readonly string[]> {
  const limit = milliseconds('timeout', timeout)
  signal?.throwIfAborted()
  if (host.startsWith('/') || isIP(host) !== 0) return [host]
  const fail = (code: string, detail: string) => new VerbsError(code, 'getaddrinfo', object, detail)
  const found = lookup(host, { all: true }).catch(() => {
    throw fail('ENOTFOUND', `unknown host "${host}"`)
  })
  const late = () => fail('ETIMEDOUT', `nothing is known of host "${host}" yet`)
  return inTurn(await within(found, limit, late, signal))
}

function inTurn(found: readonly { readonly address: string; readonly family: number }[]): string[] {
  const first = found.filter(({ family }) => family === found[0]?.family)
  const others = found.filter(({ family }) => family !== found[0]?.family)
  return found
    .flatMap((_, at) => [first[at], others[at]])
    .flatMap((one) => (one === undefined ? [] : [one.address]))
}
