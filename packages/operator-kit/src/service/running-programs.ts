import { once } from 'node:events'
import { existsSync, readdirSync } from 'node:fs'
import { type IncomingHttpHeaders, type IncomingMessage, request } from 'node:http'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { EXIT } from '../command-line/exit-status.js'
import type { Unreachable } from '../command-line/watch.js'
import { isElsewhere, PID_NAMESPACE } from './pid-namespace.js'
import { removeSocket } from './private-socket.js'
import { checkDirectory, runtimeDirectory } from './runtime-directory.js'

/** Also of a request to a control socket, until it is there. */
export const CALL_TIMEOUT_MS = 3_000

/** A running program, as found by its control socket. */
export interface RunningProgram {
  /** Its number in its own PID namespace. */
  readonly pid: number
  /** It runs in another PID namespace, as in a container: here the number is another process's, or nobody's. */
  readonly elsewhere: boolean
  readonly status: unknown
  /** @throws Error with what it refused, or that it does not answer */
  call(method: 'GET' | 'POST', path: string, body?: unknown, timeoutMs?: number): Promise<unknown>
}

/** A program that has its control socket and does not answer there: it hangs, or is stopped. */
export interface SilentProgram {
  readonly program: string
  readonly pid: number
  readonly reason: string
}

/** What a command that lists what is running says of it, and ends with. */
export function silentAsUnreachable({ program, pid, reason }: SilentProgram): Unreachable {
  return {
    message: `${program}: process ${pid} does not answer and is not shown: ${reason}`,
    exitStatus: EXIT.unavailable,
  }
}

/** Says so on stderr. */
function reportSilent(silent: SilentProgram): void {
  process.stderr.write(`${silentAsUnreachable(silent).message}\n`)
}

/**
 * All running programs of that name of this user. Sockets of which nobody is the owner are removed.
 *
 * @param silent told of each that does not answer
 */
export async function runningPrograms(
  program: string,
  silent: (program: SilentProgram) => void = reportSilent,
): Promise<RunningProgram[]> {
  const directory = runtimeDirectory()
  if (!existsSync(directory)) return []
  checkDirectory(directory)
  const running: RunningProgram[] = []
  for (const name of readdirSync(directory)) {
    const pid = name.startsWith(`${program}-`)
      ? /^-(\d+)(?:\.\d+)?\.sock$/.exec(name.slice(program.length))?.[1]
      : undefined
    if (pid === undefined) continue
    const path = join(directory, name)
    try {
      const { result: status, headers } = await exchange(path, 'GET', '/status')
      running.push({
        pid: Number(pid),
        elsewhere: isElsewhere(headers[PID_NAMESPACE]?.toString()),
        status,
        call: (method, url, body, timeoutMs) => callControlSocket(path, method, url, body, timeoutMs),
      })
    } catch (failure) {
      const { code, message } = failure as NodeJS.ErrnoException
      if (code === 'ECONNREFUSED') removeSocket(path)
      // It ended after its name was read.
      else if (code !== 'ENOENT') silent({ program, pid: Number(pid), reason: message })
    }
  }
  return running.sort((a, b) => a.pid - b.pid)
}

/**
 * @param timeoutMs for the whole answer, however it arrives
 * @returns what the program answers, undefined for nothing
 */
export async function callControlSocket(
  socketPath: string,
  method: 'GET' | 'POST',
  path: string,
  body?: unknown,
  timeoutMs?: number,
): Promise<unknown> {
  return (await exchange(socketPath, method, path, body, timeoutMs)).result
}

async function exchange(
  socketPath: string,
  method: 'GET' | 'POST',
  path: string,
  body?: unknown,
  timeoutMs = CALL_TIMEOUT_MS,
): Promise<{ result: unknown; headers: IncomingHttpHeaders }> {
  const signal = AbortSignal.timeout(timeoutMs)
  try {
    const message = request({ socketPath, method, path, signal })
    message.on('error', () => {}) // told here, or by the reply
    message.end(body === undefined ? undefined : JSON.stringify(body))
    const [reply] = (await once(message, 'response')) as [IncomingMessage]
    const received = await text(reply)
    const result: unknown = received === '' ? undefined : JSON.parse(received)
    if ((reply.statusCode ?? 500) < 300) return { result, headers: reply.headers }
    const { code, message: reason } = (result ?? {}) as { code?: string; message?: string }
    throw Object.assign(new Error(reason ?? `${method} ${path}: status ${reply.statusCode}`), { code })
  } catch (failure) {
    throw signal.aborted ? new Error(`${socketPath} does not answer`) : failure
  }
}
