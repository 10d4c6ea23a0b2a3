// Executes a block as a reader would: each line of a shell block in a terminal of its own, the next one when the one
// before has ended or says that it is ready. An empty line begins anew: what still runs is ended.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { endWithProcess } from '../e2e/helpers/processes.js'
import type { Block } from './blocks.js'
import { isShell, paragraphsOf } from './shell.js'
import type { Place } from './workplace.js'

/** What the programs print when the next line may come; in a clone each line is to end. */
const READY = /^(listening|ready|attached) |^\{"event":"listening"/m
const NEVER = /(?!)/
/** Prints until it is ended: is ready with its first line. */
const ENDLESS = / --watch\b/

class Command {
  readonly #line: string
  readonly #ready: RegExp
  readonly #process: ChildProcess
  readonly #over: Promise<unknown>
  readonly #patienceMs: number
  #stopped = false
  stdout = ''
  stderr = ''

  constructor(line: string, words: readonly string[], ready: RegExp, place: Place) {
    const { folder, env, patienceMs, echo } = place
    this.#line = line
    this.#patienceMs = patienceMs
    this.#ready = ENDLESS.test(line) ? /\n/ : ready
    // A group of its own, which ends as a whole.
    this.#process = endWithProcess(
      spawn(words[0] as string, words.slice(1), {
        cwd: folder,
        env,
        detached: true,
        stdio: ['ignore', 'pipe', 'pipe'],
      }),
    )
    for (const stream of ['stdout', 'stderr'] as const)
      this.#process[stream]?.setEncoding('utf8').on('data', (text: string) => {
        this[stream] += text
        if (echo) process[stream].write(text)
      })
    this.#over = once(this.#process, 'close')
  }

  get running(): boolean {
    return this.#process.exitCode === null && this.#process.signalCode === null
  }

  /** Waits until it is ready, or has ended well. */
  async settles(): Promise<void> {
    const signal = AbortSignal.timeout(this.#patienceMs)
    while (this.running && !this.#ready.test(this.stdout) && !signal.aborted)
      await Promise.race([
        this.#over,
        once(this.#process.stdout as NodeJS.EventEmitter, 'data', { signal }),
      ]).catch(() => {})
    if (signal.aborted) this.#fail('does not end, nor say that it is ready')
    if (!this.running) await this.ends()
  }

  /** Asks it to end, as Ctrl-C does. */
  async stop(): Promise<void> {
    this.#stopped = this.running
    this.#signal('SIGTERM')
    await this.ends()
  }

  async ends(): Promise<void> {
    const late = setTimeout(() => this.#signal('SIGKILL'), this.#patienceMs)
    await this.#over
    clearTimeout(late)
    const { exitCode, signalCode } = this.#process
    if (exitCode !== 0 && !(this.#stopped && signalCode === 'SIGTERM'))
      this.#fail(`ended with ${exitCode ?? signalCode}`)
  }

  kill(): void {
    this.#signal('SIGKILL')
  }

  #signal(signal: NodeJS.Signals): void {
    try {
      process.kill(-(this.#process.pid as number), signal)
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code !== 'ESRCH') throw failure
    }
  }

  #fail(what: string): never {
    throw new Error(`${this.#line}\n${what}\n${this.stdout}${this.stderr}`)
  }
}

/** Runs a block. @returns what its lines printed, in their order @throws where one fails */
export async function execute(block: Block, place: Place): Promise<string> {
  const ready = block.kind === 'clone' ? NEVER : READY
  const commands: Command[] = []
  const start = async (text: string) => {
    const line = place.here(text)
    const command = new Command(line, await place.launch(line), ready, place)
    commands.push(command)
    await command.settles()
    return command
  }
  const stopFrom = async (first: number) => {
    for (const command of commands.splice(first).reverse()) await command.stop()
  }
  try {
    for (const line of paragraphsOf(block.context).flat()) await start(line)
    const before = commands.length
    const ran: Command[] = []
    for (const lines of paragraphsOf(await shellOf(block, place))) {
      for (const line of lines) ran.push(await start(line))
      await stopFrom(before)
    }
    await stopFrom(0)
    return ran.map(({ stdout }) => stdout).join('')
  } finally {
    for (const command of commands) command.kill()
  }
}

/** A program's types are taken away, and nothing else: what Node.js cannot read must fail here. */
async function shellOf(block: Block, place: Place): Promise<string> {
  if (isShell(block)) return block.code
  // Takes a second to load, in a guest ten.
  const { default: ts } = await import('typescript')
  const { outputText } = ts.transpileModule(place.here(block.code), {
    compilerOptions: {
      target: ts.ScriptTarget.ESNext,
      module: ts.ModuleKind.ESNext,
      verbatimModuleSyntax: true,
    },
  })
  writeFileSync(join(place.folder, 'example.mjs'), outputText)
  return 'node example.mjs'
}
