import { closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs'
import { UsageError } from '@rdmakit/verbs'
import { exposureOfPlace } from './folder-exposure.js'

/** A file that the operator wrote says something that cannot be. */
export class ConfigurationError extends UsageError {
  override readonly name = 'ConfigurationError'
}

/** Bytes of a secret. */
const MINIMUM_SECRET = 16
const MAXIMUM_SECRET = 1024
/** Bytes of a file: enough for thousands of tenants. */
const MAXIMUM_FILE = 16 * 2 ** 20

export interface ReadFile {
  readonly text: string
  /** Why it may not hold secrets; undefined when only its owner can read it. */
  readonly exposed: string | undefined
}

/**
 * Reads a small file of the operator's, and says whether secrets are safe there.
 * @throws ConfigurationError when it cannot be read, or when others may write to it or put another in its place
 */
export function readOperatorFile(path: string, what: string): ReadFile {
  let descriptor: number
  try {
    // Not waiting for a writer, should it be a pipe.
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  } catch (failure) {
    throw new ConfigurationError(`${what} ${path} cannot be read: ${reasonOf(failure)}`)
  }
  try {
    // Of what was opened, not of what the path may name a moment later.
    const { mode, uid, size } = fstatSync(descriptor)
    if ((mode & constants.S_IFMT) !== constants.S_IFREG)
      throw new ConfigurationError(`${what} ${path} is not a file`)
    if (size > MAXIMUM_FILE) throw new ConfigurationError(`${what} ${path} is above ${MAXIMUM_FILE} bytes`)
    if ((mode & 0o022) !== 0)
      throw new ConfigurationError(`${what} ${path} can be written by others; "chmod 600 ${path}"`)
    const me = process.geteuid?.() ?? 0
    if (uid !== me && uid !== 0)
      throw new ConfigurationError(`${what} ${path} belongs to user ${uid}; "chown ${me} ${path}"`)
    const place = exposureOfPlace(path)
    if (place !== undefined)
      throw new ConfigurationError(`${what} ${path} can be replaced by others: ${place}`)
    const exposed =
      (mode & 0o077) === 0
        ? undefined
        : `others have access (mode ${(mode & 0o777).toString(8)}); "chmod 600 ${path}"`
    return { text: readFileSync(descriptor, 'utf8'), exposed }
  } finally {
    closeSync(descriptor)
  }
}

/** A pre-shared key of a tenant. */
export interface Key {
  readonly id: string
  readonly secret: Buffer
}

/**
 * Reads a client's key file: one line `id:secret`, readable for its owner only.
 * @throws ConfigurationError that never repeats what is in it
 */
export function readKeyFile(path: string): Key {
  const { text, exposed } = readOperatorFile(path, 'key file')
  if (exposed !== undefined) throw new ConfigurationError(`key file ${path} is not safe: ${exposed}`)
  const lines = text.split('\n').filter((line) => line.trim() !== '')
  const [, id, secret] = /^([^:]+):(.+)$/.exec(lines[0]?.trim() ?? '') ?? []
  if (lines.length !== 1 || id === undefined || secret === undefined)
    throw new ConfigurationError(`key file ${path} is not one line "id:secret"`)
  try {
    return { id: checkName(id, 'the key id'), secret: parseSecret(secret) }
  } catch (failure) {
    throw new ConfigurationError(`key file ${path}: ${(failure as Error).message}`)
  }
}

/**
 * A secret as operators write it: hex when it is 32 or more hex digits, an even number, else base64.
 * @throws Error that never repeats it
 */
export function parseSecret(text: string): Buffer {
  const hex = text.length >= 2 * MINIMUM_SECRET && text.length % 2 === 0 && /^[0-9a-fA-F]+$/.test(text)
  if (!hex && !/^[A-Za-z0-9+/]+={0,2}$/.test(text)) throw new Error('the secret is neither hex nor base64')
  const secret = Buffer.from(text, hex ? 'hex' : 'base64')
  if (secret.length < MINIMUM_SECRET || secret.length > MAXIMUM_SECRET)
    throw new Error(
      `the secret has ${secret.length} bytes instead of ${MINIMUM_SECRET} to ${MAXIMUM_SECRET}; "openssl rand -hex 32" makes one`,
    )
  return secret
}

/** Names of tenants and keys stand in logs, labels and key files. @throws Error */
export function checkName(name: string, what: string): string {
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(name))
    throw new Error(`${what} is not 1 to 64 letters, digits, ".", "_", "-" that begin with a letter or digit`)
  return name
}

function reasonOf(failure: unknown): string {
  const { code, message } = failure as NodeJS.ErrnoException
  return code === 'ENOENT' ? 'there is no such file' : (code ?? message)
}
