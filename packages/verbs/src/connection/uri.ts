import { UsageError } from '../base/errors.js'
import type { ProviderName } from '../native.js'

/** Where a listener is, as `rdma://host:port`, `iwarp://host:port` or `shm:///path/of/a.sock`. */
export interface Endpoint {
  /** the scheme names it */
  readonly provider: ProviderName
  /** name or address, of IPv6 with its interface where it needs one (`fe80::1%eth0`); for `shm` the absolute path of its socket, at most 107 bytes */
  readonly host: string
  /** 0 for `shm`, and for a listener that takes any free port */
  readonly port: number
}

const SCHEMES: Readonly<Record<string, ProviderName>> = {
  rdma: 'ibverbs',
  iwarp: 'iwarp',
  shm: 'shm',
}
const SHM_PATTERN = /^shm:\/\/(\/[^\0]{1,106})$/
const PATTERN = /^([a-z][a-z0-9+.-]*):\/\/(\[[0-9a-fA-F:.]+(?:%[^\s/%[\]]+)?\]|[^:/[\]]+)?(?::(\d+))?\/?$/

/** Port of a URI that names none: the one that RDMA examples have used for twenty years. */
export const DEFAULT_PORT = 7471

/**
 * Reads a verbs URI.
 * @throws UsageError that says what is wrong and what is known
 */
export function parseUri(uri: string): Endpoint {
  const quoted = JSON.stringify(uri) // an error is one line, whatever is wrong
  if (uri.startsWith('shm:')) {
    const path = SHM_PATTERN.exec(uri)?.[1]
    if (path === undefined)
      throw new UsageError(
        `${quoted} is not an address; write shm:///path/of/a.sock, at most 107 bytes of path`,
      )
    return { provider: 'shm', host: path, port: 0 }
  }
  const [, scheme, host, port] = PATTERN.exec(uri) ?? []
  if (scheme === undefined || host === undefined)
    throw new UsageError(`${quoted} is not an address; write rdma://host:port or iwarp://host:port`)
  const provider = SCHEMES[scheme]
  if (provider === undefined)
    throw new UsageError(
      `unknown URI scheme "${scheme}://" in ${quoted}; known: ${Object.keys(SCHEMES)
        .map((name) => `${name}://`)
        .join(', ')}`,
    )
  const number = port === undefined ? DEFAULT_PORT : Number(port)
  if (number > 65535) throw new UsageError(`port ${port} in ${quoted} is above 65535`)
  // In a URI the % before the interface may be written as %25 (RFC 6874).
  return { provider, host: host.replace(/^\[|\]$/g, '').replace(/%25(?=.)/, '%'), port: number }
}

/** The URI of an endpoint. */
export function formatUri({ provider, host, port }: Endpoint): string {
  if (provider === 'shm') return `shm://${host}`
  const scheme = Object.keys(SCHEMES).find((name) => SCHEMES[name] === provider)
  return `${scheme}://${host.includes(':') ? `[${host}]` : host}:${port}`
}
