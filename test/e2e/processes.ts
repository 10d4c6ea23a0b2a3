import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { top } from '../lab/paths.js'

export const SWAP_SERVER = join(top, 'packages/swap-server/dist/cli.js')
export const NBD_CLIENT = join(top, 'packages/nbd-client/dist/cli.js')

/** A program of ours that runs while a test does, with what it has printed so far. */
export class Program implements AsyncDisposable {
  readonly process: ChildProcess
  readonly exited: Promise<{ status: number | null; signal: NodeJS.Signals | null }>
  stdout = ''
  stderr = ''
  readonly #name: string
  readonly #waiters = new Set<() => void>()

  /** @param stderr a descriptor in the place of what is kept here */
  constructor(
    script: string,
    args: readonly string[],
    env: NodeJS.ProcessEnv = {},
    stderr: 'pipe' | number = 'pipe',
  ) {
    this.#name = `${script.split('/').at(-3)} ${args.join(' ')}`
    this.process = spawn(process.execPath, [script, ...args], {
      stdio: ['ignore', 'pipe', stderr],
      env: { ...process.env, ...env },
    })
    this.process.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.stdout += text
      for (const wake of this.#waiters) wake()
    })
    this.process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text
    })
    this.exited = new Promise((resolve) => {
      this.process.once('close', (status, signal) => {
        resolve({ status, signal })
        for (const wake of this.#waiters) wake()
      })
    })
  }

  /** The first match of `pattern` in what the program prints. @throws when it ends or is silent too long */
  async prints(pattern: RegExp, timeoutMs = 20_000): Promise<RegExpExecArray> {
    const deadline = Date.now() + timeoutMs
    for (;;) {
      const match = pattern.exec(this.stdout)
      if (match !== null) return match
      const rest = deadline - Date.now()
      if (rest <= 0 || this.process.exitCode !== null || this.process.signalCode !== null)
        throw new Error(`${this.#name} did not print ${pattern}\n${this.stdout}\n${this.stderr}`)
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
  async stop(signal: NodeJS.Signals = 'SIGTERM', timeoutMs = 15_000) {
    this.process.kill(signal)
    return this.ends(timeoutMs)
  }

  async ends(timeoutMs = 15_000) {
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

/** A swap-server, default on a free port. With `folder` its control socket is there, not where the user's are. */
export async function startServer(
  args: readonly string[],
  listen = 'iwarp://127.0.0.1:0',
  folder?: string,
  stderr?: number,
): Promise<{ program: Program; uri: string }> {
  const env = folder === undefined ? {} : { RDMAKIT_RUN: folder }
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

/** What `nbd-client status --json` tells of the one whose control socket is in `folder`. */
export function statusIn<Status>(folder: string): Status {
  const out = must('env', [`RDMAKIT_RUN=${folder}`, process.execPath, NBD_CLIENT, 'status', '--json'])
  return JSON.parse(out)[0]
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

/** A temporary folder, gone after the test. */
export function temporaryFolder(): Disposable & { path: string } {
  const path = mkdtempSync(join(tmpdir(), 'rdmakit-'))
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) }
}
