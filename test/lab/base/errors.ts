/** No guest can run on this machine; the message says what is missing and what to do about it. */
export class NoGuestError extends Error {
  override readonly name = 'NoGuestError'
  readonly code = 'ENOTSUP'
}

/** Something did not happen before its deadline. */
export class DeadlineError extends Error {
  override readonly name = 'DeadlineError'
  readonly code = 'ETIMEDOUT'
}

/** A guest ended, or was lost, while it was still wanted. */
export class GuestDiedError extends Error {
  override readonly name = 'GuestDiedError'
  readonly code = 'EHOSTDOWN'
}

/** Exit status of the lab's programs where no guest can run, as automake's tests say "skipped". */
export const exitNoGuest = 77

/** The promise's value, or a DeadlineError after `deadlineMs`. */
export async function before<T>(deadlineMs: number, what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const expired = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new DeadlineError(`${what}: not within ${deadlineMs / 1000} s`)),
      deadlineMs,
    )
  })
  try {
    return await Promise.race([promise, expired])
  } finally {
    clearTimeout(timer)
  }
}

/** The command line asks for what there is not. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
}
