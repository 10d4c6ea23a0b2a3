import type { Service } from 'protobufjs'
import { milliseconds } from '../base/timeout.js'
import { decode, encode, type Method, methodsOf } from './method.js'
import type { CallOptions, Client, ReflectedClient, StaticService } from './types.js'

/** What services can be called through: a {@link RingConnection}, or whatever has its `request`. */
export interface ServiceCaller {
  /** {@link RingConnection.request} */
  request(
    bytes: Uint8Array,
    options?: CallOptions & { readonly immediate?: number | undefined },
  ): Promise<Uint8Array>
}

/** What holds for all calls of a service's client. */
export interface ClientOptions {
  /** milliseconds that a call may take when it names no time, default 5000 */
  readonly timeout?: number | undefined
}

/**
 * The methods of a protobuf service as functions that call the peer. Calls are pipelined: any number may
 * be under way, and those that the peer has no memory for wait here.
 *
 * A call rejects with {@link RemoteError} when the peer's method fails (ENOSYS: it does not serve it;
 * EBADMSG: it could not decode the request); VerbsError EBADMSG when the response cannot be decoded,
 * EMSGSIZE when the request is longer than the peer takes (its `maxMessageSize`), ETIMEDOUT, ECONNRESET, ESHUTDOWN; UsageError
 * when the fields are not those of the request; or the signal's reason.
 * @param service the class of a pbjs static module, or what `root.lookupService` returns
 * @throws UsageError for a method that streams, or a bad timeout
 */
export function client<S>(
  connection: ServiceCaller,
  service: StaticService<S>,
  options?: ClientOptions,
): Client<S>
export function client(connection: ServiceCaller, service: Service, options?: ClientOptions): ReflectedClient
export function client(
  connection: ServiceCaller,
  service: StaticService<unknown> | Service,
  { timeout = 5_000 }: ClientOptions = {},
): object {
  milliseconds('timeout', timeout)
  return Object.freeze(
    Object.fromEntries(
      methodsOf(service).map((method) => [method.name, caller(connection, method, timeout)]),
    ),
  )
}

function caller(connection: ServiceCaller, method: Method, timeout: number) {
  return async (fields: object, options: CallOptions = {}): Promise<object> => {
    const bytes = encode(method, method.request, fields)
    const limits = { ...options, timeout: options.timeout ?? timeout }
    const response = await connection.request(bytes, { ...limits, immediate: method.id })
    return decode(method, method.response, response, 'response')
  }
}
