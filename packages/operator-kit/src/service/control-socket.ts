import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { EXIT, ExitError } from '../command-line/exit-status.js'
import { InvalidInputError } from '../command-line/invalid-input-error.js'
import { PID_NAMESPACE, pidNamespace } from './pid-namespace.js'
import { listenPrivately, removeSocket } from './private-socket.js'
import { CALL_TIMEOUT_MS } from './running-programs.js'
import { controlSocketName, MOST_NAMES, openRuntimeDirectory } from './runtime-directory.js'

/**
 * What a program does for those who may use its control socket, by method and path, e.g. `GET /status`. It gets
 * the body as JSON gives it (undefined: none), and what it returns goes back as JSON (undefined: nothing).
 */
export type ControlRoutes = Readonly<Record<string, (body: unknown) => unknown>>

const MAXIMUM_BODY = 2 ** 16

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
   * @throws InvalidInputError as {@link openRuntimeDirectory}; ExitError: processes of other PID namespaces have all names
   */
  static async open(program: string, routes: ControlRoutes): Promise<ControlSocket> {
    // An ended process has left the existing one.
    const path = await ownPath(openRuntimeDirectory(), program)
    const namespace = pidNamespace()
    const server = createServer({ requestTimeout: CALL_TIMEOUT_MS }, (message, reply) => {
      if (namespace !== undefined) reply.setHeader(PID_NAMESPACE, namespace)
      answer(routes, message, reply).catch((failure: Error) => refuse(reply, failure))
    })
    await listenPrivately(server, path)
    server.unref()
    return new ControlSocket(server, path)
  }

  /** Takes no further call, and waits until those under way are answered, `timeout` milliseconds at most. */
  async finish(timeout: number): Promise<void> {
    const answered = new Promise<void>((resolve) => this.#server.close(() => resolve()))
    await Promise.race([answered, delay(timeout, undefined, { ref: false })])
  }

  /** Never fails: more has to end after it. */
  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
    removeSocket(this.path)
  }
}

/** A process of another PID namespace may share the folder, and have the number of this one. */
async function ownPath(directory: string, program: string): Promise<string> {
  for (let turn = 1; turn <= MOST_NAMES; turn++) {
    const path = join(directory, controlSocketName(program, process.pid, turn))
    if (!(await isServed(path))) return path
  }
  throw new ExitError(
    `${directory}: the ${MOST_NAMES} names for the control socket of ${program} ${process.pid} are taken; set RDMAKIT_RUN to another folder`,
    EXIT.taken,
  )
}

async function isServed(path: string): Promise<boolean> {
  const socket = connect(path)
  try {
    await once(socket, 'connect')
    return true
  } catch (failure) {
    // Any other reason means that a process is there: a full backlog, for example.
    return !['ECONNREFUSED', 'ENOENT'].includes((failure as NodeJS.ErrnoException).code ?? '')
  } finally {
    socket.destroy()
  }
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
