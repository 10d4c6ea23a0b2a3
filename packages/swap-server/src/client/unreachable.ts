import { nameOption } from '@rdmakit/operator-kit'
import { VerbsError } from '@rdmakit/verbs'

/** Likely reasons for a failed connection, for failures that do not name the reason themselves. */
const LIKELY: Readonly<Record<string, string>> = {
  EPROTO: 'the listener there is not a swap-server of this scheme, but most likely another service',
  ETIMEDOUT: 'a firewall or another service may be there',
  ECONNRESET: 'another service may be there, or a server that has just ended',
}

/**
 * Makes the failure to reach a server name the option, or the argument, with its address, and a likely
 * reason.
 * @returns it
 */
export function explainUnreachable(option: string, failure: unknown): unknown {
  if (failure instanceof VerbsError && LIKELY[failure.code] !== undefined)
    failure.message += `; ${LIKELY[failure.code]}: check host, port and scheme`
  return nameOption(option, failure)
}
