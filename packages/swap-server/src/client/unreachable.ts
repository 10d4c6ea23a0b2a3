import { nameOption } from '@rdmakit/operator-kit'
import { VerbsError } from '@rdmakit/verbs'

/** What may be meant by a connection that was not made, of those of which the failure itself does not say it. */
const LIKELY: Readonly<Record<string, string>> = {
  EPROTO: 'the listener there is not a swap-server of this scheme, but most likely another service',
  ETIMEDOUT: 'a firewall or another service may be there',
  ECONNRESET: 'another service may be there, or a server that has just ended',
}

/**
 * Has the failure to reach a server name the option, or the argument, that says where it is, and what is likely.
 * @returns it
 */
export function explainUnreachable(option: string, failure: unknown): unknown {
  if (failure instanceof VerbsError && LIKELY[failure.code] !== undefined)
    failure.message += `; ${LIKELY[failure.code]}: check host, port and scheme`
  return nameOption(option, failure)
}
