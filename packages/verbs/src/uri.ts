import { UsageError } from './errors.js'
import type { ProviderName } from './native.js'

/** Where a listener is, as `rdma://host:port` or `iwarp://host:port`. */
export interface Endpoint {
  readonly provider: ProviderName
  readonly host: string
  /** 0 only for a listener that takes any free port */
  readonly port: number
}

const SCHEMES: Readonly<Record<string, ProviderName>> = { rdma: 'ibverbs', iwarp: 'iwarp' }
const PATTERN = /^([a-z][a-z0-9+.-]*):\/\/(\[[0-9a-fA-F:.]+\]|[^:/[\]]+)?(?::(\d+))?\/?$/

/** Port of a URI that names none: the one that RDMA examples have used for twenty years. */
export const DEFAULT_PORT = 7471

/**
 * Reads a verbs URI.
 * @throws UsageError that says what is wrong and what is known
 */
export function parseUri(uri: string): Endpoint {
  const [, scheme, host, port] = PATTERN.exec(uri) ?? []
  if (scheme === undefined || host === undefined)
    throw new UsageError(`"${uri}" is not an address; write rdma://host:port or iwarp://host:port`)
  const provider = SCHEMES[scheme]
  if (provider === undefined)
    throw new UsageError(
      `unknown URI scheme "${scheme}://" in "${uri}"; known: ${Object.keys(SCHEMES)
        .map((name) => `${name}://`)
        .join(', ')}`,
    )
  const number = port === undefined ? DEFAULT_PORT : Number(port)
  if (number > 65535) throw new UsageError(`port ${port} in "${uri}" is above 65535`)
  return { provider, host: host.replace(/^\[|\]$/g, ''), port: number }
}

/** The URI of an endpoint. */
export function formatUri({ provider, host, port }: Endpoint): string {
  const scheme = Object.keys(SCHEMES).find((name) => SCHEMES[name] === provider)
  return `${scheme}://${host.includes(':') ? `[${host}]` : host}:${port}`
}
