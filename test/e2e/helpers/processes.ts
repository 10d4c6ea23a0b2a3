import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { top } from '../../lab/base/paths.js'

export const SWAP_SERVER = join(top, 'packages/swap-server/dist/cli.js')
export const NBD_CLIENT = join(top, 'packages/nbd-client/dist/cli.js')
/** The program that has both, and what each of them is for others as commands. */
export const RDMAKIT = join(top, 'packages/rdmakit/bin/rdmakit.js')

/** Ends what hangs, with a message, before the test's own limit does. No slow machine takes as long. */
export const PATIENCE_MS = 50_000

const running = new Set<ChildProcess>()
// A test that took too long ends nothing of what it started.
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})

/** Has `child` end with this process, whatever becomes of the test. @returns it */
export function endWithProcess<Child extends ChildProcess>(child: Child): Child {
  running.add(child)
  child.once('exit', () => running.delete(child))
  return child
}

/** What the first line of a program asks of node, as for who runs it by its name. */
export function flagsOf(script: string): string[] {
  const words = /^#!.* node (.*)\n/.exec(readFileSync(script, 'utf8'))?.[1]
  return words?.split(' ') ?? []
}

/** A program of ours that runs while a test does, with what it has printed so far. */
export class Program implements AsyncDisposable {
  readonly process: ChildProcess
  readonly exited: Promise<{ status: number | null; signal: NodeJS.Signals | null }>
  stdout = ''
  stderr = ''
  readonly #name: string
  readonly #waiters = new Set<() => void>()
  /** it has ended, and all that it printed is here */
  #over = false

  /**
   * @param stderr a descriptor in the place of what is kept here
   * @param stdin `pipe`: it stays open, and is `process.stdin`
   */
  constructor(
    script: string,
    args: readonly string[],
    env: NodeJS.ProcessEnv = {},
    stderr: 'pipe' | number = 'pipe',
    stdin: 'ignore' | 'pipe' = 'ignore',
  ) {
    this.#name = `${script.split('/').at(-3)} ${args.join(' ')}`
    this.process = endWithProcess(
      spawn(process.execPath, [...flagsOf(script), script, ...args], {
        stdio: [stdin, 'pipe', stderr],
        env: { ...process.env, ...env },
      }),
    )
    this.process.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.stdout += text
      for (const wake of this.#waiters) wake()
    })
    this.process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text
      for (const wake of this.#waiters) wake()
    })
    this.exited = new Promise((resolve) => {
      this.process.once('close', (status, signal) => {
        this.#over = true
        resolve({ status, signal })
        for (const wake of this.#waiters) wake()
      })
    })
  }

  /** The first match of `pattern` in what the program prints. @throws when it ends or is silent too long */
  prints(pattern: RegExp, timeoutMs = PATIENCE_MS): Promise<RegExpExecArray> {
    return this.#heard(() => pattern.exec(this.stdout), `print ${pattern}`, timeoutMs)
  }

  /** As {@link prints}, on stderr. */
  says(pattern: RegExp, timeoutMs = PATIENCE_MS): Promise<RegExpExecArray> {
    return this.#heard(() => pattern.exec(this.stderr), `say ${pattern}`, timeoutMs)
  }

  async #heard<Found>(find: () => Found | null, what: string, timeoutMs: number): Promise<Found> {
    const deadline = Date.now() + timeoutMs
    for (;;) {
      const found = find()
      if (found !== null) return found
      const rest = deadline - Date.now()
      if (rest <= 0 || this.#over)
        throw new Error(`${this.#name} did not ${what}\n${this.stdout}\n${this.stderr}`)
      await new Promise<void>((resolve) => {
        const timer = setTimeout(done, rest)
        const waiters = this.#waiters
        function done() {
          clearTimeout(timer)
          waiters.delete(done)
          resolve()
        }
        waiters.add(done)
      })
    }
  }

  /** Sends `signal` and waits for the end. @throws when the program is still there after `timeoutMs` */
  async stop(signal: NodeJS.Signals = 'SIGTERM', timeoutMs = PATIENCE_MS) {
    this.process.kill(signal)
    return this.ends(timeoutMs)
  }

  async ends(timeoutMs = PATIENCE_MS) {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(
        () => reject(new Error(`${this.#name} is still running after ${timeoutMs} ms\n${this.stderr}`)),
        timeoutMs,
      )
    })
    try {
      return await Promise.race([this.exited, late])
    } finally {
      clearTimeout(timer)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) await this.stop('SIGKILL')
  }
}

/**
 * A swap-server, default on a free port. With `folder` its control socket is there, not where the user's are; an
 * environment says more.
 */
export async function startServer(
  args: readonly string[],
  listen = 'iwarp://127.0.0.1:0',
  folder?: string | NodeJS.ProcessEnv,
  stderr?: number,
): Promise<{ program: Program; uri: string }> {
  const env = typeof folder === 'string' ? { RDMAKIT_RUN: folder } : folder
  const program = new Program(SWAP_SERVER, ['--listen', listen, ...args], env, stderr)
  // As text, or as JSON.
  const [, text, json] = await program.prints(/^listening (\S+)$|"event":"listening","uri":"([^"]+)"/m)
  return { program, uri: (text ?? json) as string }
}

/** A tenants file in `folder`; it replaces the one before. */
export function writeTenants(folder: string, ...tenants: object[]): string {
  const path = join(folder, 'tenants.json')
  writeFileSync(path, JSON.stringify({ tenants }), { mode: 0o600 })
  return path
}

/** An nbd-client serving on a Unix socket in `folder`. */
export async function startServe(
  server: string,
  size: string,
  folder: string,
  args: readonly string[] = [],
  stderr?: number,
) {
  const socket = join(folder, 'nbd.sock')
  const program = new Program(
    NBD_CLIENT,
    ['serve', '--server', server, '--size', size, '--unix', socket, ...args],
    { RDMAKIT_RUN: folder },
    stderr,
  )
  const [, uri] = await program.prints(/^ready (\S+)$/m)
  return { program, socket, uri: uri as string }
}

/**
 * What the one whose control socket is in `folder` tells, as `status --json` prints it: asked here, for a process of Node.js
 * that is started for each question takes more than all else.
 */
export async function statusIn<Status>(folder: string, program = 'nbd-client'): Promise<Status> {
  for (const name of readdirSync(folder)) {
    if (!name.startsWith(`${program}-`) || !name.endsWith('.sock')) continue
    try {
      return JSON.parse(await ask(join(folder, name), '/status'))
    } catch (failure) {
      // Of one that was killed.
      if ((failure as NodeJS.ErrnoException).code !== 'ECONNREFUSED') throw failure
    }
  }
  throw new Error(`no ${program} has its control socket in ${folder}`)
}

function ask(socketPath: string, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const asking = request({ socketPath, path, timeout: PATIENCE_MS }, (reply) => {
      let text = ''
      reply.setEncoding('utf8').on('data', (piece: string) => {
        text += piece
      })
      reply.on('error', reject).on('end', () => resolve(text))
    })
    asking.on('timeout', () => asking.destroy(new Error(`${socketPath} does not answer`)))
    asking.on('error', reject).end()
  })
}

/** Asks until `wanted` holds of the answer: of a state that no event tells. @returns that answer */
export async function until<Value>(
  ask: () => Value | Promise<Value>,
  wanted: (value: Value) => boolean,
  timeoutMs = PATIENCE_MS,
): Promise<Value> {
  const deadline = Date.now() + timeoutMs
  for (;;) {
    const value = await ask()
    if (wanted(value)) return value
    if (Date.now() > deadline) throw new Error(`still ${JSON.stringify(value)}`)
    await new Promise((resolve) => setTimeout(resolve, 30))
  }
}

/** Runs a program to its end. */
export function run(command: string, args: readonly string[], timeoutMs = 120_000) {
  const result = spawnSync(command, args, { encoding: 'utf8', timeout: timeoutMs, maxBuffer: 64 * 2 ** 20 })
  if (result.error !== undefined) throw result.error
  return { status: result.status, stdout: result.stdout, stderr: result.stderr }
}

/** Runs a program that must succeed. @returns what it printed */
export function must(command: string, args: readonly string[], timeoutMs?: number): string {
  const { status, stdout, stderr } = run(command, args, timeoutMs)
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${status}\n${stdout}\n${stderr}`)
  return stdout
}

/** As {@link must}, while other things go on. */
export async function complete(
  command: string,
  args: readonly string[],
  timeoutMs = 120_000,
): Promise<string> {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], timeout: timeoutMs })
  let stdout = ''
  let stderr = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text
  })
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text
  })
  const status = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject)
    child.once('close', resolve)
  })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${status}\n${stdout}\n${stderr}`)
  return stdout
}

/** A temporary folder, gone after the test. */
export function temporaryFolder(): Disposable & { path: string } {
  const path = mkdtempSync(join(tmpdir(), 'rdmakit-'))
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) }
}
