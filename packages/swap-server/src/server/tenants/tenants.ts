import { integerOf, parseSize } from '@rdmakit/operator-kit'
import { ConfigurationError, readConfigurationFile } from '../../protocol/configuration-error.js'
import { checkName, type Key, parseSecret } from '../../protocol/key-file.js'
import { Pace } from './pace.js'

/** What all sessions of a tenant may use together; 0: no limit. */
export interface TenantLimits {
  readonly bytesPerSecond: number
  readonly operationsPerSecond: number
}

/** Somebody whom a server lends memory to, as the tenants file says. A reload makes another object of it. */
export interface Tenant {
  readonly name: string
  /** by id; each of them is as good; empty: it needs none */
  readonly keys: ReadonlyMap<string, Key>
  /** bytes that its sessions may hold together; undefined: as much as there is */
  readonly quota: number | undefined
  /** an opportunistic tenant uses only what production leaves */
  readonly class: 'production' | 'opportunistic'
  /** its share beside others of its class, 1 … 10000 */
  readonly weight: number
  readonly limits: TenantLimits
  /** sessions, and data connections of all of them together, at most; undefined: what the server's places allow */
  readonly sessions: number | undefined
  readonly dataConnections: number | undefined
  /** may ask about all tenants */
  readonly operator: boolean
}

/** What a reload changed, by name. */
export interface TenantsChange {
  readonly added: readonly string[]
  readonly removed: readonly string[]
  readonly kept: readonly string[]
}

const DEFAULTS = {
  keys: new Map<string, Key>(),
  quota: undefined,
  class: 'production',
  weight: 100,
  limits: { bytesPerSecond: 0, operationsPerSecond: 0 },
  sessions: undefined,
  dataConnections: undefined,
  operator: false,
} as const satisfies Omit<Tenant, 'name'>

const MAXIMUM_TENANTS = 4096
const MAXIMUM_KEYS = 16

/**
 * The tenants of a server. Ask it by name each time: a reload replaces what {@link find} gives. A tenant that
 * is not there any more has no sessions any more; one whose keys changed keeps those that it has.
 */
export class Tenants {
  readonly #path: string | undefined
  readonly #paces = new WeakMap<Tenant, Pace>()
  #tenants: ReadonlyMap<string, Tenant>

  private constructor(path: string | undefined, tenants: ReadonlyMap<string, Tenant>) {
    this.#path = path
    this.#tenants = tenants
  }

  /** One tenant `default`, without key or quota: a server without a tenants file. */
  static open(): Tenants {
    // Every client that can connect belongs to the operator, because tenants are not distinguished.
    const name = 'default'
    return new Tenants(undefined, new Map([[name, { ...DEFAULTS, name, operator: true }]]))
  }

  /** @throws ConfigurationError: a sentence that names the field */
  static load(path: string): Tenants {
    return new Tenants(path, readTenants(path))
  }

  /**
   * Rereads the file. If it has a mistake, or no keys any more, the old contents stay in force: a server
   * without keys lends to all who can connect, so only a restart can make it one.
   * @throws ConfigurationError
   */
  reload(): TenantsChange {
    const before = this.#tenants
    if (this.#path !== undefined) {
      const read = readTenants(this.#path)
      if (this.needKeys && !needKeys(read))
        throw new ConfigurationError(
          `tenants file ${this.#path}: it no longer has keys, and without keys the server is open to all; give its tenants keys, or restart the server if you want that`,
        )
      this.#tenants = read
    }
    const names = [...this.#tenants.keys()]
    return {
      added: names.filter((name) => !before.has(name)),
      removed: [...before.keys()].filter((name) => !this.#tenants.has(name)),
      kept: names.filter((name) => before.has(name)),
    }
  }

  /** The empty name is `default`. */
  find(name: string): Tenant | undefined {
    return this.#tenants.get(name === '' ? 'default' : name)
  }

  /** @param keyId as the client wrote it @returns the tenant's key of that id */
  findKey(tenant: string, keyId: string): Key | undefined {
    return this.find(tenant)?.keys.get(keyId)
  }

  /** Takes a turn of the tenant's Pace. @returns as {@link Pace.next} @internal */
  turn(name: string): number | undefined {
    const tenant = this.find(name)
    // Alone, it costs nobody anything.
    if (tenant === undefined || this.#tenants.size === 1) return 0
    const pace = this.#paces.get(tenant) ?? new Pace()
    this.#paces.set(tenant, pace)
    return pace.next()
  }

  get all(): readonly Tenant[] {
    return [...this.#tenants.values()]
  }

  /** All of them have keys, or none has. */
  get needKeys(): boolean {
    return needKeys(this.#tenants)
  }
}

function needKeys(tenants: ReadonlyMap<string, Tenant>): boolean {
  return [...tenants.values()].some(({ keys }) => keys.size > 0)
}

/** @throws ConfigurationError */
function readTenants(path: string): ReadonlyMap<string, Tenant> {
  const { text, exposed } = readConfigurationFile(path, 'tenants file')
  const wrong = (what: string) => new ConfigurationError(`tenants file ${path}: ${what}`)
  let document: unknown
  try {
    document = JSON.parse(text)
  } catch (failure) {
    // V8 quotes the text around the fault, which may be a secret: the place is enough.
    const at = /position (\d+)/.exec((failure as Error).message)?.[1]
    // It names none where the text ends too early.
    const lines = text.slice(0, at === undefined ? text.length : Number(at)).split('\n')
    const place = `line ${lines.length}, column ${(lines.at(-1) ?? '').length + 1}`
    throw wrong(`it is not JSON; the mistake is in ${place}`)
  }
  let tenants: Map<string, Tenant>
  try {
    tenants = parseTenants(document)
  } catch (failure) {
    throw wrong((failure as Error).message)
  }
  if (exposed !== undefined && needKeys(tenants)) throw wrong(`it has keys and is not safe: ${exposed}`)
  return tenants
}

/** @throws Error that names the field */
function parseTenants(document: unknown): Map<string, Tenant> {
  const { tenants } = fields(document, 'the file', ['tenants'])
  if (!Array.isArray(tenants) || tenants.length === 0 || tenants.length > MAXIMUM_TENANTS)
    throw new Error(`"tenants" is not a list of 1 to ${MAXIMUM_TENANTS} tenants`)
  const found = new Map<string, Tenant>()
  for (const [at, each] of tenants.entries()) {
    const tenant = parseTenant(each, `tenants[${at}]`)
    if (found.has(tenant.name)) throw new Error(`tenant "${tenant.name}" appears twice`)
    found.set(tenant.name, tenant)
  }
  const [withKeys, without] = [true, false].map((has) =>
    [...found.values()].find(({ keys }) => keys.size > 0 === has),
  )
  if (withKeys !== undefined && without !== undefined)
    throw new Error(
      `tenant "${without.name}" has no keys and "${withKeys.name}" has; give all of them keys, or none`,
    )
  return found
}

function parseTenant(value: unknown, where: string): Tenant {
  const given = fields(value, where, [
    'name',
    'keys',
    'quota',
    'class',
    'weight',
    'operator',
    'sessions',
    'dataConnections',
    'bytesPerSecond',
    'operationsPerSecond',
  ])
  if (typeof given.name !== 'string') throw new Error(`${where}.name is missing or not a string`)
  const name = checkName(given.name, `${where}.name`)
  const of = (field: string) => `tenant "${name}": ${field}`
  if (given.class !== undefined && given.class !== 'production' && given.class !== 'opportunistic')
    throw new Error(`${of('class')} is neither "production" nor "opportunistic"`)
  if (given.operator !== undefined && typeof given.operator !== 'boolean')
    throw new Error(`${of('operator')} is neither true nor false`)
  const bytes = (field: keyof typeof given) =>
    given[field] === undefined ? undefined : size(given[field], of(field))
  const integer = (field: keyof typeof given, most: number) =>
    given[field] === undefined ? undefined : integerOf(given[field], of(field), 1, most)
  return {
    name,
    keys: parseKeys(given.keys, of('keys')),
    quota: bytes('quota'),
    class: given.class ?? DEFAULTS.class,
    weight: integer('weight', 10_000) ?? DEFAULTS.weight,
    limits: {
      bytesPerSecond: bytes('bytesPerSecond') ?? 0,
      operationsPerSecond: integer('operationsPerSecond', 2 ** 32) ?? 0,
    },
    sessions: integer('sessions', 65_536),
    dataConnections: integer('dataConnections', 65_536),
    operator: given.operator ?? DEFAULTS.operator,
  }
}

function parseKeys(value: unknown, where: string): ReadonlyMap<string, Key> {
  if (value === undefined) return DEFAULTS.keys
  if (!Array.isArray(value) || value.length > MAXIMUM_KEYS)
    throw new Error(`${where} is not a list of at most ${MAXIMUM_KEYS} keys`)
  const keys = new Map<string, Key>()
  for (const [at, each] of value.entries()) {
    const { id, secret } = fields(each, `${where}[${at}]`, ['id', 'secret'])
    if (typeof id !== 'string') throw new Error(`${where}[${at}].id is missing or not a string`)
    if (typeof secret !== 'string') throw new Error(`${where}[${at}].secret is missing or not a string`)
    checkName(id, `${where}[${at}].id`)
    if (keys.has(id)) throw new Error(`${where}: id "${id}" appears twice`)
    try {
      keys.set(id, { id, secret: parseSecret(secret) })
    } catch (failure) {
      throw new Error(`${where}[${at}]: ${(failure as Error).message}`)
    }
  }
  return keys
}

/** A name with a typing error in it is worth showing; anything else may be a secret in the wrong place. */
const SHOWN_FIELD = /^[A-Za-z_]{1,20}$/

/** An object with only these fields. A misspelt field would otherwise be a limit without effect. */
function fields<Name extends string>(
  value: unknown,
  where: string,
  names: readonly Name[],
): Partial<Record<Name, unknown>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new Error(`${where} is not an object`)
  for (const name of Object.keys(value)) {
    if ((names as readonly string[]).includes(name)) continue
    const field = SHOWN_FIELD.test(name) ? `a field "${name}"` : 'a field'
    throw new Error(`${where} has ${field} that is not one of ${names.join(', ')}`)
  }
  return value
}

function size(value: unknown, where: string): number {
  // A long value is not quoted either: it may be a secret.
  if ((typeof value !== 'string' && typeof value !== 'number') || String(value).length > 20)
    throw new Error(`${where} is not a size such as "8G"`)
  return parseSize(String(value), where)
}
