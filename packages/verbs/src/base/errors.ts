import { constants } from 'node:os'
import { queueMicrotask } from './clock.js'

const ERRNO_NAMES = new Map(Object.entries(constants.errno).map(([name, value]) => [value as number, name]))

/**
 * A verb failed. `code` is the errno name (`ENOMEM`, `ECONNREFUSED` …), `verb` the libibverbs or librdmacm function that
 * was called, `object` the object that it was called on.
 */
export class VerbsError extends Error {
  /** `VerbsError`, as a log prints it */
  override readonly name = 'VerbsError'
  /** an errno name */
  readonly code: string
  /** the function that failed, by the name of its manual page */
  readonly verb: string
  /** the object that it failed on */
  readonly object: string

  constructor(code: string, verb: string, object: string, detail: string) {
    super(`${verb} on ${object}: ${detail} (${code})`)
    this.code = code
    this.verb = verb
    this.object = object
  }
}

/** The caller used the API wrongly: a bad argument, a closed object. Nothing was sent. */
export class UsageError extends Error {
  /** `UsageError`, as a log prints it */
  override readonly name: string = 'UsageError'
  /** always `EINVAL` */
  readonly code: string = 'EINVAL'
}

/** The peer rejected a connection. `privateData` is its reason. */
export class ConnectionRejectedError extends VerbsError {
  /** the peer's reason */
  readonly privateData: Uint8Array

  constructor(object: string, privateData: Uint8Array, detail = 'the peer rejected the connection') {
    super('ECONNREFUSED', 'rdma_connect', object, detail)
    this.privateData = privateData
  }
}

/** Shape of what the addon throws. It is of the realm in which the addon was loaded first, which may be another one. */
interface NativeFailure {
  code: string
  verb: string
  detail: string
}

function isNativeFailure(value: unknown): value is NativeFailure {
  return (
    typeof value === 'object' && value !== null && 'verb' in value && 'code' in value && 'detail' in value
  )
}

/** The error for an errno value that an event brought. @param explain what its name means there */
export function errorOfStatus(
  status: number,
  verb: string,
  object: string,
  explain: (code: string) => string,
): VerbsError {
  const code = ERRNO_NAMES.get(Math.abs(status)) ?? `E${Math.abs(status)}`
  return new VerbsError(code, verb, object, explain(code))
}

/** Turns a failure of the addon into a {@link VerbsError} that names `object`; other errors pass as they are. */
export function named(object: string, failure: unknown): unknown {
  return isNativeFailure(failure)
    ? new VerbsError(failure.code, failure.verb, object, failure.detail)
    : failure
}

/** Runs a native call and names the object it was made on if it fails. */
export function calling<T>(object: string, call: () => T): T {
  try {
    return call()
  } catch (failure) {
    throw named(object, failure)
  }
}

/** Calls `callback` apart from the code that runs now: what it throws is an uncaught exception. */
export function callApart(callback: () => void): void {
  queueMicrotask(callback)
}
