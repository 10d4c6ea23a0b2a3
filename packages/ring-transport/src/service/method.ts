import { UsageError, VerbsError } from '@rdmakit/verbs'
import type { Service } from 'protobufjs'
import type { StaticService } from './types.js'

/** The part of a message class that services need: what pbjs generates, and what a reflected Type has. */
export interface MessageClass {
  encode(message: object): { finish(): Uint8Array }
  decode(bytes: Uint8Array): object
  /** what is wrong with the fields; absent when generated with `--no-verify` */
  verify?(message: object): string | null
}

/** One unary method of a service. */
export interface Method {
  /** in camel case, as generated classes and implementations name it */
  readonly name: string
  /** `/package.Service/Method` */
  readonly path: string
  /** the path's FNV-1a, which travels with each request */
  readonly id: number
  readonly request: MessageClass
  readonly response: MessageClass
}

/**
 * 32-bit FNV-1a of a string's UTF-8 (draft-eastlake-fnv, section 2): what names a method in the
 * `immediate` of a request.
 */
export function fnv1a(text: string): number {
  let hash = 0x811c9dc5
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193)
  return hash >>> 0
}

const known = new WeakMap<object, readonly Method[]>()

/**
 * The methods of a service, from its generated class or by reflection. Looked up once.
 * @throws UsageError for a method that streams, two methods of one hash, or what is no service
 */
export function methodsOf(service: StaticService<unknown> | Service): readonly Method[] {
  const before = known.get(service)
  if (before !== undefined) return before
  const methods = typeof service === 'function' ? generated(service) : reflected(service)
  const ids = new Map<number, Method>()
  for (const method of methods) {
    const other = ids.get(method.id)
    if (other !== undefined) throw collision(method, other)
    ids.set(method.id, method)
  }
  known.set(service, methods)
  return methods
}

export function collision(method: Method, other: Method): UsageError {
  return new UsageError(
    `${method.path} and ${other.path} have the same hash 0x${method.id.toString(16)}; rename one of them`,
  )
}

/** @throws UsageError when the fields are not those of the message */
export function encode(method: Method, type: MessageClass, fields: object): Uint8Array {
  if (typeof fields !== 'object' || fields === null)
    throw new UsageError(
      `${method.path}: a message is an object, not ${fields === null ? null : typeof fields}`,
    )
  const problem = type.verify?.(fields)
  if (problem) throw new UsageError(`${method.path}: ${problem}`)
  try {
    return type.encode(fields).finish()
  } catch (failure) {
    throw new UsageError(`${method.path}: the message cannot be encoded: ${(failure as Error).message}`)
  }
}

/** @throws VerbsError EBADMSG when the bytes are not those of such a message */
export function decode(method: Method, type: MessageClass, bytes: Uint8Array, what: string): object {
  try {
    return type.decode(bytes)
  } catch (failure) {
    throw new VerbsError(
      'EBADMSG',
      'decode',
      method.path,
      `the ${what} cannot be decoded: ${(failure as Error).message}`,
    )
  }
}

function method(
  name: string,
  path: string,
  streams: boolean,
  request: MessageClass,
  response: MessageClass,
): Method {
  if (streams)
    throw new UsageError(
      `${path} streams; a service of the ring transport has only methods of one request and one response`,
    )
  return { name, path, id: fnv1a(path), request, response }
}

function reflected(service: Service): Method[] {
  if (!Array.isArray(service?.methodsArray))
    throw new UsageError('a service is a class that pbjs generated, or what root.lookupService returns')
  return service.methodsArray.map((one) => {
    one.resolve()
    const { name, path, resolvedRequestType: request, resolvedResponseType: response } = one
    if (request === null || response === null)
      throw new UsageError(`${path}: its message types are not in this root`)
    const streams = one.requestStream === true || one.responseStream === true
    // Like pbjs, which names the method of its generated class so.
    return method(name.charAt(0).toLowerCase() + name.slice(1), path, streams, request, response)
  })
}

/** A method of a generated class: a call of rpc.Service.rpcCall with its message classes. */
interface GeneratedMethod {
  (this: object, request: object): unknown
  readonly path?: string
  readonly requestStream?: true
  readonly responseStream?: true
}

interface RpcService {
  rpcCall: (method: GeneratedMethod, request: MessageClass, response: MessageClass) => unknown
}

/**
 * The message classes of a generated service are in its methods and nowhere else: each passes them to
 * the rpcCall of rpc.Service, which all of protobufjs's services inherit. So each is called once with an
 * rpcCall that only notes them. Nothing else runs meanwhile, and nothing is sent.
 */
function generated(service: StaticService<unknown>): Method[] {
  const prototype = service.prototype as Record<string, unknown>
  const base = Object.getPrototypeOf(prototype) as Partial<RpcService> | null
  if (typeof base?.rpcCall !== 'function')
    throw new UsageError(`${service.name} is not a service class generated by pbjs`)
  const rpc = base as RpcService
  const methods: Method[] = []
  const { rpcCall } = rpc
  let name = ''
  rpc.rpcCall = (one, request, response) => {
    const { path } = one
    if (path === undefined)
      throw new UsageError(
        `${service.name}.${name} has no path: generate it with protobufjs-cli 2.7 or later`,
      )
    const streams = one.requestStream === true || one.responseStream === true
    methods.push(method(name, path, streams, request, response))
  }
  try {
    for (name of Object.keys(prototype)) (prototype[name] as GeneratedMethod).call(prototype, {})
  } finally {
    rpc.rpcCall = rpcCall
  }
  return methods
}
