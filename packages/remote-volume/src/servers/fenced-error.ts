import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { meaningOfRefusal, SwapServerError } from '@rdmakit/swap-server'

/** Another process has taken the volume over (docs/page-service/fencing.md): this one stops, and ends nothing of it. */
export class FencedError extends ExitError {
  override readonly name = 'FencedError'

  constructor(uri: string, reason: string) {
    super(`${uri}: ${reason}; this process stops, and leaves the volume to the other one`, EXIT.fenced)
  }
}

/** What a server at `uri` says, as a {@link FencedError} if it is that; else `failure`. */
export function fencedOr(uri: string, failure: unknown): unknown {
  const fenced = failure instanceof SwapServerError && meaningOfRefusal(failure.code) === 'fenced'
  return fenced ? new FencedError(uri, failure.message) : failure
}
