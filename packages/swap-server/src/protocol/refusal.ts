/** A request that is refused; `code` (an errno name) and the message, one sentence, go to the client. */
export class Refusal extends Error {
  constructor(
    readonly code: string,
    message: string,
    /** that this server has the key, of a Resume that it refuses */
    readonly mac?: Uint8Array,
  ) {
    super(message)
  }
}

/** The meaning for a session of a server's refusal to resume it. */
export type RefusedResume =
  /** it is gone, with its memory */
  | 'ended'
  /** another process has it */
  | 'fenced'
  /** it is there, and this client does not get it however long it waits: a key, a tenant, a quota, a version */
  | 'forbidden'
  /** the next time, or at another address, it may be different */
  | 'later'

const MEANINGS: ReadonlyMap<string, RefusedResume> = new Map([
  ['ENOENT', 'ended'],
  ['ESTALE', 'fenced'],
  ['EACCES', 'forbidden'],
  ['EPERM', 'forbidden'],
  ['EDQUOT', 'forbidden'],
  ['EPROTO', 'forbidden'],
  ['EINVAL', 'forbidden'],
])

/** @param code of the refusal; of one that is not known here nothing is given up */
export function meaningOfRefusal(code: string): RefusedResume {
  return MEANINGS.get(code) ?? 'later'
}
