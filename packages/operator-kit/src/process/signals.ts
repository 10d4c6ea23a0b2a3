import { closeStrayDebugger } from './stray-debugger.js'

/*
 * What the programs do at each signal that ends a process by default (signal(7)), for others have their memory there:
 *
 *   SIGTERM, SIGINT, SIGQUIT, SIGXCPU   an orderly end; SIGHUP, of a terminal that was closed: see handleSignals
 *   SIGALRM, SIGUSR1, SIGUSR2,          nothing, and a line that says so: they mean nothing here. SIGUSR1 would have Node.js
 *   SIGVTALRM, SIGPROF, SIGIO,          open a debugger's port; of one that comes before the program can handle it the port
 *   SIGPWR, SIGSTKFLT                   is closed. SIGPWR comes when the power fails, and the end of the host with it, of
 *                                       which the service manager tells by SIGTERM
 *   SIGPIPE, SIGXFSZ                    nothing: Node.js ignores them, and the call fails (EPIPE, EFBIG)
 *   SIGILL, SIGTRAP, SIGABRT, SIGBUS,   the end, as by default: the process is wrong about itself, or wants a dump
 *   SIGFPE, SIGSEGV, SIGSYS
 *   SIGKILL, real-time signals          the end, as by default: nobody may, and nobody does, handle those
 */

/** What ends a program that has a device in good order. */
export const TERMINATION_SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT', 'SIGXCPU'] as const

const MEANINGLESS = [
  ...(['SIGALRM', 'SIGUSR1', 'SIGUSR2', 'SIGVTALRM'] as const),
  ...(['SIGPROF', 'SIGIO', 'SIGPWR', 'SIGSTKFLT'] as const),
]

export interface SignalOptions {
  /** Called at each signal that is to end the program. */
  readonly end: (signal: NodeJS.Signals) => void
  /** `end`: SIGHUP is one of those; `kept`: it does nothing here, somebody else listens for it */
  readonly hangup: 'end' | 'kept'
  readonly say: (line: string) => void
}

/** Decides on every signal that would end this process without a word. For good. */
export function handleSignals({ end, hangup, say }: SignalOptions): void {
  for (const signal of TERMINATION_SIGNALS)
    if (signal === 'SIGHUP' && hangup === 'kept') process.on(signal, () => {})
    else process.on(signal, () => end(signal))
  for (const signal of MEANINGLESS)
    process.on(signal, () => say(`${signal} is ignored; SIGTERM ends this process`))
  closeStrayDebugger(say)
}
