import { once } from 'node:events'
import { existsSync, readdirSync, rmSync, statSync } from 'node:fs'
import { createServer, type IncomingMessage, request, type Server, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { EXIT } from '../command-line/exit-status.js'
import { InvalidInputError } from '../command-line/invalid-input-error.js'
import { exposureOfPlace } from '../files/folder-exposure.js'
import { checkPlace, makeFolder } from '../files/operator-paths.js'
import { listenPrivately } from './private-socket.js'

/**
 * What a program does for those who may use its control socket, by method and path, e.g. `GET /status`. It gets
 * the body as JSON gives it (undefined: none), and what it returns goes back as JSON (undefined: nothing).
 */
export type ControlRoutes = Readonly<Record<string, (body: unknown) => unknown>>

/** how messages name it, with what sets it */
const RUN_FOLDER = 'the folder for control sockets (RDMAKIT_RUN)'
const CALL_TIMEOUT_MS = 3_000
const MAXIMUM_BODY = 2 ** 16

/** Where running programs leave their control sockets, and attach its state: `$RDMAKIT_RUN`, else /run/rdmakit for root. */
export function runtimeDirectory(): string {
  if (process.env.RDMAKIT_RUN) return process.env.RDMAKIT_RUN
  if (process.getuid?.() === 0) return '/run/rdmakit'
  return join(process.env.XDG_RUNTIME_DIR ?? join(tmpdir(), `rdmakit-${process.getuid?.()}`), 'rdmakit')
}

/** Makes it if it is missing. @returns its path @throws InvalidInputError when it is, or may become, somebody else's */
export function openRuntimeDirectory(): string {
  const directory = runtimeDirectory()
  makeFolder(directory, RUN_FOLDER)
  checkDirectory(directory)
  checkPlace(join(directory, 'any.sock'), RUN_FOLDER)
  return directory
}

/**
 * Checks what `$RDMAKIT_RUN` says, before anything else is done. Where it says nothing, whoever needs the folder has to say
 * what lacks without it.
 * @throws InvalidInputError, ExitError
 */
export function checkRuntimeDirectory(): void {
  if (process.env.RDMAKIT_RUN) openRuntimeDirectory()
}

/** The control socket of this process, mode 0600: HTTP for `status` and other commands on the same machine. */
export class ControlSocket {
  readonly path: string
  readonly #server: Server

  private constructor(server: Server, path: string) {
    this.#server = server
    this.path = path
  }

  /**
   * @param program the name that {@link runningPrograms} looks for
   * @throws InvalidInputError when the folder is somebody else's
   */
  static async open(program: string, routes: ControlRoutes): Promise<ControlSocket> {
    // What is there was left by one that has ended.
    const path = await ownPath(openRuntimeDirectory(), program)
    const server = createServer({ requestTimeout: CALL_TIMEOUT_MS }, (message, reply) => {
      answer(routes, message, reply).catch((failure: Error) => refuse(reply, failure))
    })
    await listenPrivately(server, path)
    server.unref()
    return new ControlSocket(server, path)
  }

  /** Takes no further call, and waits until those under way are answered, `timeout` milliseconds at most. */
  async finish(timeout: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, timeout)
    })
    await Promise.race([new Promise<void>((resolve) => this.#server.close(() => resolve())), late])
    clearTimeout(timer)
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
    rmSync(this.path, { force: true })
  }
}

/** A process of another PID namespace may share the folder, and have the number of this one. */
async function ownPath(directory: string, program: string): Promise<string> {
  for (let turn = 1; ; turn++) {
    const path = join(directory, `${program}-${process.pid}${turn === 1 ? '' : `.${turn}`}.sock`)
    if (!(await isServed(path))) return path
  }
}

async function isServed(path: string): Promise<boolean> {
  const socket = connect(path)
  try {
    await once(socket, 'connect')
    return true
  } catch (failure) {
    // Of any other reason somebody is the cause: a full backlog, say.
    return !['ECONNREFUSED', 'ENOENT'].includes((failure as NodeJS.ErrnoException).code ?? '')
  } finally {
    socket.destroy()
  }
}

/** Whoever may write to the folder can put another socket in the place of ours, or in the next one another folder. */
function checkDirectory(directory: string): void {
  const status = statSync(directory)
  if (!status.isDirectory())
    throw new InvalidInputError(
      `${directory}, for control sockets, is not a folder; set RDMAKIT_RUN to another`,
    )
  const { uid, mode } = status
  if (uid !== process.geteuid?.() && uid !== 0)
    throw new InvalidInputError(
      `${directory}, for control sockets, belongs to user ${uid}; set RDMAKIT_RUN to another`,
    )
  if ((mode & 0o022) !== 0)
    throw new InvalidInputError(
      `${directory}, for control sockets, can be written by others; "chmod 700 ${directory}"`,
    )
  const exposure = exposureOfPlace(directory)
  if (exposure !== undefined)
    throw new InvalidInputError(
      `${directory}, for control sockets, is not safe: ${exposure}, or set RDMAKIT_RUN to another`,
    )
}

async function answer(routes: ControlRoutes, message: IncomingMessage, reply: ServerResponse): Promise<void> {
  const body = await bodyOf(message)
  const route = `${message.method} ${message.url}`
  const handler = Object.hasOwn(routes, route) ? routes[route] : undefined
  if (handler === undefined) {
    reply.statusCode = 404
    reply.end()
    return
  }
  const result = await handler(body)
  reply.statusCode = result === undefined ? 202 : 200
  reply.setHeader('content-type', 'application/json')
  reply.end(result === undefined ? undefined : JSON.stringify(result, plain))
}

async function bodyOf(message: IncomingMessage): Promise<unknown> {
  const pieces: Buffer[] = []
  let length = 0
  for await (const piece of message as AsyncIterable<Buffer>) {
    length += piece.length
    if (length > MAXIMUM_BODY) throw new InvalidInputError(`a request has at most ${MAXIMUM_BODY} bytes`)
    pieces.push(piece)
  }
  const text = Buffer.concat(pieces).toString()
  return text === '' ? undefined : JSON.parse(text)
}

function refuse(reply: ServerResponse, failure: Error & { code?: unknown }): void {
  reply.statusCode = 400
  reply.setHeader('content-type', 'application/json')
  reply.end(JSON.stringify({ code: failure.code, message: failure.message }))
}

const plain = (_: string, value: unknown) => (typeof value === 'bigint' ? Number(value) : value)

/** A running program, as found by its control socket. */
export interface RunningProgram {
  readonly pid: number
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

/** Says so on stderr. */
export function tellOfSilent({ program, pid, reason }: SilentProgram): void {
  process.stderr.write(`${program}: process ${pid} does not answer and is left out: ${reason}\n`)
}

/** Says so, and lets a command that lists what is running end with the status of what is unavailable. */
export function missSilent(silent: SilentProgram): void {
  tellOfSilent(silent)
  process.exitCode = EXIT.unavailable
}

/**
 * All running programs of that name of this user. Sockets of which nobody is the owner are removed.
 *
 * @param silent told of each that does not answer
 */
export async function runningPrograms(
  program: string,
  silent: (program: SilentProgram) => void = tellOfSilent,
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
      const status = await callControlSocket(path, 'GET', '/status')
      running.push({
        pid: Number(pid),
        status,
        call: (method, url, body, timeoutMs) => callControlSocket(path, method, url, body, timeoutMs),
      })
    } catch (failure) {
      const { code, message } = failure as NodeJS.ErrnoException
      if (code === 'ECONNREFUSED') rmSync(path, { force: true })
      // It ended after its name was read.
      else if (code !== 'ENOENT') silent({ program, pid: Number(pid), reason: message })
    }
  }
  return running.sort((a, b) => a.pid - b.pid)
}

/** @returns what the program answers, undefined for nothing */
export function callControlSocket(
  socketPath: string,
  method: 'GET' | 'POST',
  path: string,
  body?: unknown,
  timeoutMs = CALL_TIMEOUT_MS,
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const message = request({ socketPath, method, path, timeout: timeoutMs }, (reply) => {
      let text = ''
      reply.setEncoding('utf8')
      reply.on('data', (piece: string) => {
        text += piece
      })
      reply.on('error', reject)
      reply.on('end', () => {
        try {
          const result: unknown = text === '' ? undefined : JSON.parse(text)
          if ((reply.statusCode ?? 500) < 300) return resolve(result)
          const { code, message: reason } = (result ?? {}) as { code?: string; message?: string }
          reject(
            Object.assign(new Error(reason ?? `${method} ${path}: status ${reply.statusCode}`), { code }),
          )
        } catch (failure) {
          reject(failure)
        }
      })
    })
    message.on('timeout', () => message.destroy(new Error(`${socketPath} does not answer`)))
    message.on('error', reject)
    message.end(body === undefined ? undefined : JSON.stringify(body))
  })
}
