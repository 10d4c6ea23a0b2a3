import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { watch } from 'node:fs/promises'
import { dirname } from 'node:path'

/** A process that prints where it listens and is ended with the benchmark. */
export class Child implements AsyncDisposable {
  readonly process: ChildProcess
  readonly #exited: Promise<void>
  #stderr = ''

  constructor(command: string, args: readonly string[], env: NodeJS.ProcessEnv = {}) {
    this.process = spawn(command, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...env },
    })
    this.process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-2000)
    })
    this.#exited = new Promise((resolve) => this.process.once('close', () => resolve()))
  }

  /** The first match in the child's output. @throws when it ends or is silent for 20 s */
  async prints(pattern: RegExp): Promise<RegExpExecArray> {
    const found = new Promise<RegExpExecArray>((resolve) => {
      let text = ''
      this.process.stdout?.setEncoding('utf8').on('data', (more: string) => {
        text += more
        const match = pattern.exec(text)
        if (match !== null) resolve(match)
      })
    })
    let timer: NodeJS.Timeout | undefined
    const silent = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no ${pattern} in 20 s\n${this.#stderr}`)), 20_000)
    })
    const ended = this.#exited.then(() => {
      throw new Error(`the process ended before it printed ${pattern}\n${this.#stderr}`)
    })
    ended.catch(() => {})
    try {
      return await Promise.race([found, silent, ended])
    } finally {
      clearTimeout(timer)
    }
  }

  /** Waits for the child to make a file. @throws when it ends or takes longer than 20 s */
  async leaves(path: string): Promise<void> {
    const stop = AbortSignal.timeout(20_000)
    const changes = watch(dirname(path), { signal: stop })
    if (existsSync(path)) return
    for await (const _ of changes) if (existsSync(path)) return
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const kill = setTimeout(() => this.process.kill('SIGKILL'), 10_000)
    this.process.kill('SIGTERM')
    await this.#exited
    clearTimeout(kill)
  }
}
