import { type ChildProcess, type ExecFileOptions, execFile, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { setTimeout } from 'node:timers/promises'
import { promisify } from 'node:util'
import { endWithProcess } from './leftovers.js'

const DEADLINE_MS = 20_000
const LOOK_MS = 3

const execute = promisify(execFile)

/** Runs a program to its end, or to that of this process. @throws as execFile() does, when its status is not 0 */
export function run(command: string, args: readonly string[], options: ExecFileOptions) {
  const running = execute(command, args, { ...options, encoding: 'utf8' })
  endWithProcess(running.child)
  return running
}

/** A process that prints where it listens and is ended with the benchmark. */
export class Child implements AsyncDisposable {
  readonly process: ChildProcess
  readonly #exited: Promise<void>
  #ended = false
  #stderr = ''

  constructor(command: string, args: readonly string[], env: NodeJS.ProcessEnv = {}) {
    this.process = endWithProcess(
      spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } }),
    )
    this.process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-2000)
    })
    this.#exited = new Promise((resolve) =>
      this.process.once('close', () => {
        this.#ended = true
        resolve()
      }),
    )
    // A program that does not exist; "close" follows.
    this.process.once('error', ({ message }) => {
      this.#stderr += message
    })
  }

  /** The first match in the child's output. @throws, and ends it, when it ends or says nothing for 20 s */
  async prints(pattern: RegExp): Promise<RegExpExecArray> {
    let text = ''
    let match: RegExpExecArray | null = null
    this.process.stdout?.setEncoding('utf8').on('data', (more: string) => {
      text += more
      match ??= pattern.exec(text)
    })
    return await this.#until(() => match ?? undefined, `printed ${pattern}`)
  }

  /** Waits for the child to make a file. @throws, and ends it, when it ends or takes longer than 20 s */
  async leaves(path: string): Promise<void> {
    await this.#until(() => existsSync(path) || undefined, `made ${path}`)
  }

  /** Looks every few milliseconds: a start takes tens of them, and nothing that is looked at can be missed. */
  async #until<T>(done: () => T | undefined, what: string): Promise<T> {
    const deadline = performance.now() + DEADLINE_MS
    for (;;) {
      const ended = this.#ended
      const result = done()
      if (result !== undefined) return result
      if (!ended && performance.now() < deadline) {
        await setTimeout(LOOK_MS)
        continue
      }
      await this[Symbol.asyncDispose]()
      const when = ended ? 'the process ended before it' : `in ${DEADLINE_MS / 1000} s the process has not`
      throw new Error(`${when} ${what}\n${this.#stderr}`)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const gone = new AbortController()
    const patience = setTimeout(10_000, undefined, { signal: gone.signal })
    patience.then(() => this.process.kill('SIGKILL')).catch(() => {})
    this.process.kill('SIGTERM')
    await this.#exited
    gone.abort()
  }
}
