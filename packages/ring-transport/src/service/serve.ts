import { UsageError, VerbsError } from '@rdmakit/verbs'
import type { Service } from 'protobufjs'
import type { RequestContext, RequestHandler } from '../connection/connection.js'
import { collision, decode, encode, type Method, methodsOf } from './method.js'
import type { Implementation, ReflectedImplementation, StaticService } from './types.js'

/** What services can be served on: a {@link RingConnection}, or whatever has its `handle`. */
export interface ServiceHost {
  /** {@link RingConnection.handle} */
  handle(handler: RequestHandler | undefined): void
}

type Answer = (request: object, context: RequestContext) => object | Promise<object>

/** A method and what answers it. */
interface Served {
  readonly method: Method
  readonly answer: Answer
}

/** Methods that a connection serves, by the hash that requests carry. */
type Table = Map<number, Served>

const tables = new WeakMap<ServiceHost, Table>()

/**
 * Answers a protobuf service's requests on a connection. Several services may be served on one; together
 * they take the place of the connection's handler.
 *
 * The caller is told what goes wrong, as a {@link RemoteError}: ENOSYS for a method that is not served,
 * EBADMSG for a request that cannot be decoded, EINVAL when the implementation returns what is no such
 * response, and what the implementation throws.
 * @param service the class of a pbjs static module, or what `root.lookupService` returns
 * @param implementation a function for each method, by its name in camel case
 * @returns what ends the service: its methods are ENOSYS from then on
 * @throws UsageError for a method that streams or is not implemented, a service that is served already,
 *   or two methods of the same hash
 */
export function serve<S>(
  connection: ServiceHost,
  service: StaticService<S>,
  implementation: Implementation<S>,
): () => void
export function serve(
  connection: ServiceHost,
  service: Service,
  implementation: ReflectedImplementation,
): () => void
export function serve(
  connection: ServiceHost,
  service: StaticService<unknown> | Service,
  implementation: object,
): () => void {
  const methods = methodsOf(service)
  const answers = implementation as Record<string, unknown>
  const table = tables.get(connection) ?? new Map<number, Served>()
  const served = methods.map((method) => {
    const answer = answers[method.name]
    if (typeof answer !== 'function')
      throw new UsageError(`${method.path}: "${method.name}" is not implemented`)
    const other = table.get(method.id)?.method
    if (other?.path === method.path)
      throw new UsageError(`${method.path} is served on this connection already`)
    if (other !== undefined) throw collision(method, other)
    return { method, answer: (answer as Answer).bind(implementation) }
  })
  for (const one of served) table.set(one.method.id, one)
  tables.set(connection, table)
  connection.handle((request, context) => answer(table, request.immediate, request.data, context))
  return () => {
    for (const { method } of served) table.delete(method.id)
  }
}

async function answer(
  table: Table,
  id: number,
  bytes: Uint8Array,
  context: RequestContext,
): Promise<Uint8Array> {
  const served = table.get(id)
  if (served === undefined)
    throw new VerbsError('ENOSYS', 'request', 'the peer', `it serves no method of hash 0x${id.toString(16)}`)
  const { method } = served
  const request = decode(method, method.request, bytes, 'request')
  return encode(method, method.response, await served.answer(request, context))
}
