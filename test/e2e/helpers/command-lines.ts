import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { endWithProcess, flagsOf, PATIENCE_MS } from './processes.js'

const HELPER = fileURLToPath(new URL('command-lines-process.mjs', import.meta.url))

/** How a command line ended, and what it printed. */
export interface Ended {
  readonly status: number
  readonly stdout: string
  readonly stderr: string
}

/**
 * Command lines of a program, one after the other in one process: for those that are refused, of which there are
 * hundreds. A process each takes 0.3 s of processor time, all of it for what they have in common.
 */
export class CommandLines implements AsyncDisposable {
  readonly #process: ChildProcess
  readonly #ready: Promise<unknown>
  #last: Promise<unknown>
  /** what was printed past process.stdout and process.stderr */
  besides = ''

  constructor(script: string) {
    this.#process = endWithProcess(
      fork(HELPER, [script], { execArgv: flagsOf(script), stdio: ['ignore', 'pipe', 'pipe', 'ipc'] }),
    )
    for (const stream of [this.#process.stdout, this.#process.stderr])
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.besides += text
      })
    this.#ready = this.#answer()
    this.#last = this.#ready
  }

  run(words: readonly string[], env: NodeJS.ProcessEnv): Promise<Ended> {
    const answer = this.#last.then(() => {
      const answered = this.#answer()
      this.#process.send({ words, env })
      return answered as Promise<Ended>
    })
    this.#last = answer.catch(() => {})
    return answer
  }

  async #answer(): Promise<unknown> {
    const signal = AbortSignal.timeout(PATIENCE_MS)
    const ended = once(this.#process, 'exit', { signal }).then(([status]) => {
      throw new Error(`its process ended with ${status}: ${this.besides}`)
    })
    const [answer] = await Promise.race([once(this.#process, 'message', { signal }), ended])
    ended.catch(() => {})
    return answer
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#ready.catch(() => {})
    this.#process.kill('SIGKILL')
  }
}
