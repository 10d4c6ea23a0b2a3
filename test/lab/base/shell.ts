import { before, DeadlineError } from './errors.js'

/** A program and its arguments, or one line for `sh -c`. */
export type Command = readonly string[] | string

export interface CommandOptions {
  /** Folder to run in; the repository's top by default. */
  cwd?: string
  /** Added to the shell's own environment. */
  env?: Readonly<Record<string, string>>
  /** Sees output as it comes. */
  onOutput?: (text: string, stream: OutputStream) => void
}

export interface ExecOptions extends CommandOptions {
  /** The command is killed and a DeadlineError thrown after this long; 60 s by default. */
  deadlineMs?: number
}

export type OutputStream = 'stdout' | 'stderr'

export interface CommandResult {
  /** Exit status; null when a signal ended the process. */
  status: number | null
  /** Number of the signal that ended the process. */
  signal: number | null
  stdout: string
  stderr: string
}

export class CommandError extends Error {
  override readonly name = 'CommandError'

  constructor(
    command: Command,
    readonly result: CommandResult,
  ) {
    const end = result.signal === null ? `exit status ${result.status}` : `signal ${result.signal}`
    super(`${show(command)}: ${end}\n${tail(result.stderr + result.stdout)}`)
  }
}

/** How a running process is reached: over a guest's agent, or a local child process. */
export interface ProcessControl {
  signal(name: NodeJS.Signals, wholeGroup: boolean): void
}

/** A process started in a guest or on this machine. Its output is kept and can be waited on. */
export class RunningProcess {
  /** Settles when the process is gone; rejects when the guest it ran in is lost. */
  readonly exited: Promise<CommandResult>
  #output = { stdout: '', stderr: '' }
  #waiting = new Set<() => void>()
  #over = false
  #resolve!: (result: CommandResult) => void
  #reject!: (error: Error) => void

  constructor(
    readonly command: Command,
    private readonly control: ProcessControl,
    private readonly onOutput?: CommandOptions['onOutput'],
  ) {
    this.exited = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    // A caller that needs the result awaits it; the failure of a background process must not end the program.
    this.exited.catch(() => {})
  }

  get stdout(): string {
    return this.#output.stdout
  }

  get stderr(): string {
    return this.#output.stderr
  }

  signal(name: NodeJS.Signals): void {
    this.control.signal(name, false)
  }

  /** The first line of stdout or stderr, from the beginning on, that matches. */
  async waitForLine(pattern: RegExp, deadlineMs: number): Promise<RegExpExecArray> {
    let found: RegExpExecArray | undefined
    let wake: (() => void) | undefined
    const seen = new Promise<void>((resolve) => {
      wake = () => {
        found ??= firstMatch(pattern, this.#output.stdout) ?? firstMatch(pattern, this.#output.stderr)
        if (found || this.#over) resolve()
      }
      this.#waiting.add(wake)
      wake()
    })
    const what = `${show(this.command)}: waiting for a line like ${pattern}`
    try {
      await before(deadlineMs, what, seen)
    } catch (error) {
      throw error instanceof DeadlineError ? new DeadlineError(`${error.message}\n${this.#tail()}`) : error
    } finally {
      if (wake) this.#waiting.delete(wake)
    }
    if (found) return found
    throw new CommandError(this.command, await this.exited)
  }

  /** Sends SIGTERM, or the given signal, and waits for the end; SIGKILL at the deadline. */
  async stop(deadlineMs = 15_000, name: NodeJS.Signals = 'SIGTERM'): Promise<CommandResult> {
    if (!this.#over) this.signal(name)
    return await this.ended(deadlineMs)
  }

  /** Waits for the end; at the deadline kills the process and all it started. */
  async ended(deadlineMs: number): Promise<CommandResult> {
    try {
      return await before(deadlineMs, show(this.command), this.exited)
    } catch (error) {
      if (!(error instanceof DeadlineError)) throw error
      this.control.signal('SIGKILL', true)
      throw new DeadlineError(`${error.message}\n${this.#tail()}`)
    }
  }

  /** For the shell that runs the process. */
  receiveOutput(stream: OutputStream, text: string): void {
    this.#output[stream] += text
    this.onOutput?.(text, stream)
    for (const wake of this.#waiting) wake()
  }

  /** For the shell that runs the process. */
  receiveEnd(end: { status: number | null; signal: number | null } | Error): void {
    this.#over = true
    if (end instanceof Error) this.#reject(end)
    else this.#resolve({ ...end, ...this.#output })
    for (const wake of this.#waiting) wake()
  }

  #tail(): string {
    return tail(this.#output.stderr + this.#output.stdout)
  }
}

/** Somewhere commands run: a guest, or the machine that this program itself runs on. */
export abstract class Shell {
  abstract readonly name: string

  /** Starts a command in the background. */
  abstract start(command: Command, options?: CommandOptions): RunningProcess

  /** Runs a command to its end, whatever its exit status. */
  async exec(command: Command, options: ExecOptions = {}): Promise<CommandResult> {
    return await this.start(command, options).ended(options.deadlineMs ?? 60_000)
  }

  /** Runs a command that must succeed; its stdout. */
  async run(command: Command, options: ExecOptions = {}): Promise<string> {
    const result = await this.exec(command, options)
    if (result.status !== 0) throw new CommandError(command, result)
    return result.stdout
  }
}

export function toArguments(command: Command): readonly string[] {
  return typeof command === 'string' ? ['sh', '-c', command] : command
}

function show(command: Command): string {
  return typeof command === 'string' ? command : command.join(' ')
}

function firstMatch(pattern: RegExp, text: string): RegExpExecArray | undefined {
  // Only complete lines, so that a number at a line's end is never read half.
  for (const line of text.slice(0, text.lastIndexOf('\n') + 1).split('\n')) {
    const match = pattern.exec(line)
    if (match) return match
  }
  return undefined
}

export function tail(text: string, lines = 30): string {
  return text.trimEnd().split('\n').slice(-lines).join('\n')
}
