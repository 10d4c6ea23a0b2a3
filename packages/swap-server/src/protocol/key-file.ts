import { ConfigurationError, readConfigurationFile } from './configuration-error.js'

/** Bytes of a secret. */
const MINIMUM_SECRET = 16
const MAXIMUM_SECRET = 1024

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
  const { text, exposed } = readConfigurationFile(path, 'key file')
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
