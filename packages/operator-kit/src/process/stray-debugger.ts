import inspector from 'node:inspector'

/** What an operator writes who wants a debugger from the start; `--inspect-port` alone opens none. */
const WANTED = /(^|\s)--inspect(-brk|-wait)?(=|\s|$)/

/** In which a signal that came before has had its effect. */
const SETTLED_MS = 1_000

/**
 * Closes the debugger that a SIGUSR1 has opened while this process started: Node.js listens for the signal before the
 * program can, and whoever reaches the port then runs what he likes here. One that the command line or NODE_OPTIONS wants
 * stays. Call it when the program handles SIGUSR1 itself: from then on the signal opens none.
 */
export function closeStrayDebugger(say: (line: string) => void): void {
  if (WANTED.test([...process.execArgv, process.env.NODE_OPTIONS ?? ''].join(' '))) return
  const close = () => {
    if (inspector.url() === undefined) return
    inspector.close()
    say('SIGUSR1 opened a debugger while this process started; it is closed')
  }
  close()
  // A signal of just before is served by a thread of its own.
  setImmediate(close)
  setTimeout(close, SETTLED_MS).unref()
}
