import { argumentParser } from '@rdmakit/operator-kit'
import { parseUri } from '@rdmakit/verbs'

/** A server's address, as it is written; one that cannot be is refused with the option's name. */
export const uriOf = argumentParser((uri) => {
  parseUri(uri)
  return uri
})
