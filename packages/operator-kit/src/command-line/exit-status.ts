/**
 * How swap-server and nbd-client end, after sysexits.h, so that a service manager knows what a new start may mend: their
 * READMEs have the tables.
 */
export const EXIT = {
  ok: 0,
  /** it ran and then could not go on, or something that is none of the others */
  failed: 1,
  /** the command line is wrong, or names a place where nothing can be made */
  usage: 64,
  /** a server cannot be reached, or has too little */
  unavailable: 69,
  /** control code failed where nothing was to fail: a mistake in the program */
  internal: 70,
  /** the kernel has not, or does not give, what is needed */
  system: 71,
  /** what was to be made is there already, or somebody else's: an address, a device, a path */
  taken: 73,
  /** not root; a server refuses the key; a file may not be read */
  forbidden: 77,
  /** a file is wrong: tenants, key, certificates */
  configuration: 78,
  /** another process has taken the volume over */
  fenced: 79,
  /** of `status`: what is asked about works in part only */
  degraded: 80,
} as const

const BY_CODE: Readonly<Record<string, number>> = {
  ECONNREFUSED: EXIT.unavailable,
  ECONNRESET: EXIT.unavailable,
  ETIMEDOUT: EXIT.unavailable,
  EHOSTUNREACH: EXIT.unavailable,
  ENOTFOUND: EXIT.unavailable,
  ENETUNREACH: EXIT.unavailable,
  ENOSPC: EXIT.unavailable,
  EUSERS: EXIT.unavailable,
  // another version of the protocol, or something else that listens there
  EPROTO: EXIT.unavailable,
  ENODEV: EXIT.system,
  EADDRNOTAVAIL: EXIT.system,
  ENOMEM: EXIT.system,
  EMFILE: EXIT.system,
  EBUSY: EXIT.taken,
  EADDRINUSE: EXIT.taken,
  EEXIST: EXIT.taken,
  EPERM: EXIT.forbidden,
  EACCES: EXIT.forbidden,
  EINVAL: EXIT.usage,
  // of TLS: what is in the files, or not
  ENOKEY: EXIT.configuration,
  ENOPKG: EXIT.system,
}

/** A failure that knows how the program should end for it. */
export class ExitError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message)
  }
}

/** An error of another package that says how a program should end for it. */
export interface KnowsExitStatus {
  readonly exitStatus: number
}

/**
 * How a program should end for a failure: as it says itself ({@link ExitError}, {@link KnowsExitStatus}), else by its `code`,
 * an errno name. A class that is wrong usage of an API, or of a command line, has `EINVAL`.
 */
export function exitStatusOf(failure: unknown): number {
  if (failure instanceof ExitError) return failure.status
  const { exitStatus, code } = failure as { exitStatus?: unknown; code?: unknown }
  if (typeof exitStatus === 'number') return exitStatus
  return (typeof code === 'string' ? BY_CODE[code] : undefined) ?? EXIT.failed
}
