import type { RPCImpl } from 'protobufjs'
import type { RequestContext } from '../connection/connection.js'

/**
 * A service class as `pbjs -t static-module` generates it (protobufjs-cli 2.7 or later). `S` is what
 * `new` would make: one property for each method.
 */
export interface StaticService<S> {
  new (rpcImpl: RPCImpl, requestDelimited?: boolean, responseDelimited?: boolean): S
}

/** What a method of a generated service class looks like to TypeScript. */
export interface GeneratedMethod {
  /** `/package.Service/Method` */
  readonly path: string
  /** name of the request's message type, as the .proto has it */
  readonly requestType: string
  /** name of the response's message type, as the .proto has it */
  readonly responseType: string
}

/** Names of the methods of a generated service class, in camel case as it has them. */
export type MethodName<S> = {
  [K in keyof S]: S[K] extends GeneratedMethod ? K : never
}[keyof S]

/** Fields of the request of a generated method. */
export type RequestOf<F> = F extends (request: infer Q) => Promise<unknown> ? Q : never
/** The decoded response of a generated method. */
export type ResponseOf<F> = F extends (request: never) => Promise<infer R> ? R : never

/** A message or what has its fields: any may be left out. */
export type Fields<T> = T extends Uint8Array | string | number | boolean | null | undefined
  ? T
  : T extends readonly (infer U)[]
    ? readonly Fields<U>[]
    : T extends object
      ? {
          readonly [K in keyof T as T[K] extends (...args: never[]) => unknown ? never : K]?: Fields<
            T[K]
          > | null
        }
      : T

/** What answers one method; `context` says on which connection, and when that has ended. Declared as a method, so that `request` may be typed as the message class too. */
export type Unary<Q, R> = {
  /** its response, or a promise of it */
  answer(request: Q, context: RequestContext): Fields<R> | Promise<Fields<R>>
}['answer']

/**
 * What answers the methods of a service, all of them. `request` is an instance of the message's class,
 * in memory of its own. What a method throws goes to the caller as a {@link RemoteError} with its `code`
 * (`EREMOTEIO` when it has none) and message.
 */
export type Implementation<S> = {
  readonly [K in MethodName<S>]: Unary<RequestOf<S[K]>, ResponseOf<S[K]>>
}

/** An {@link Implementation} of a service that is only known at run time. */
export type ReflectedImplementation = Readonly<Record<string, Unary<MessageFields, MessageFields>>>

/** A message whose type is only known at run time. */
export type MessageFields = Record<string, unknown>

/** How one call is made. */
export interface CallOptions {
  /** ends the wait with its reason; the peer still does what it was asked */
  readonly signal?: AbortSignal | undefined
  /** milliseconds, default that of {@link ClientOptions} */
  readonly timeout?: number | undefined
  /**
   * Whether the peer may get the call twice: a {@link RingClient} sends it again then when its connection is lost before
   * the response has come. On a connection it means nothing. Default false.
   */
  readonly idempotent?: boolean | undefined
}

/** The calls of a service: each sends a request and resolves with the decoded response. */
export type Client<S> = {
  readonly [K in MethodName<S>]: (
    request: RequestOf<S[K]>,
    options?: CallOptions,
  ) => Promise<ResponseOf<S[K]>>
}

/** The {@link Client} of a service that is only known at run time. */
export type ReflectedClient = Readonly<
  Record<string, (request: MessageFields, options?: CallOptions) => Promise<MessageFields>>
>
