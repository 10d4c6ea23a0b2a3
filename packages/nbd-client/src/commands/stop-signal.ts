import { EXIT, ExitError, handleSignals } from '@rdmakit/operator-kit'
import { say } from '../report/log.js'

/** Aborts at the first signal that is to end this process: SIGHUP too, of a terminal that was closed. */
export function stopSignal(): AbortSignal {
  const stop = new AbortController()
  handleSignals({
    end: (name) => stop.abort(new ExitError(`ended by ${name}`, EXIT.ok)),
    hangup: 'end',
    say,
  })
  return stop.signal
}
