import { INSTANCE_BYTES, type SessionIdentity, type TakeOver } from '@rdmakit/swap-server'
import { type ProviderName, parseUri } from '@rdmakit/verbs'
import { BOOT_ID } from './boot.js'
import type { DeviceName } from './device-name.js'

const PAGE = 4096
/** Of what is written. What knows only the first one would take compressed pages for wrong ones. */
const VERSION = 1
const COMPRESSED_VERSION = 2
const PROVIDERS: readonly ProviderName[] = ['ibverbs', 'iwarp', 'shm']

/** A server of the volume as volume.json has it; its index is the one that the slab map uses. */
export interface KeptServer {
  readonly index: number
  readonly uris: readonly string[]
  readonly identity: SessionIdentity
  /** milliseconds that its session lingers */
  readonly linger: number
  /** it failed, and what slabs on record have their only replica there have all that was ever answered */
  readonly away?: boolean
}

export interface KeptDevice extends DeviceName {
  /** of the backend: what the kernel must hear again */
  readonly identifier: string
  /** sockets that the kernel has, or queues */
  readonly connections: number
}

/** The RDMA device that reaches the servers, also when none of them is there to tell. */
export interface KeptContext {
  readonly provider: ProviderName
  readonly name: string
}

/** What volume.json holds. */
export interface KeptVolume {
  /** bytes */
  readonly size: number
  /** bytes */
  readonly slabSize: number
  readonly replicas: number
  /** slabs without a place were never written */
  readonly thin?: boolean
  /** pages may be compressed, whatever is written from now on */
  readonly compressed?: boolean
  /** of the process that has the volume, or had it last; undefined: it knew none, which is number 0 */
  readonly takeOver?: TakeOver
  readonly servers: readonly KeptServer[]
  readonly context?: KeptContext
  /** of attach: identifier of the device that the kernel is being asked for; nobody was told of one yet */
  readonly connecting?: string
  /** of attach; undefined until the kernel has the device */
  readonly device?: KeptDevice
  /** of serve: clients may have written to it */
  readonly served?: boolean
  /** of serve: the boot in which that was (boot.ts); older versions kept none */
  readonly boot?: string
}

/** The text of volume.json. */
export function formatVolume(volume: KeptVolume): string {
  const servers = volume.servers.map(({ identity, ...rest }) => ({
    ...rest,
    identity: { ...identity, token: Buffer.from(identity.token).toString('hex') },
  }))
  const version = volume.compressed === true ? COMPRESSED_VERSION : VERSION
  // Older versions know nothing else, and not the word.
  const device = volume.device?.front === 'nbd' ? { ...volume.device, front: undefined } : volume.device
  const takeOver = volume.takeOver && {
    ...volume.takeOver,
    instance: Buffer.from(volume.takeOver.instance).toString('hex'),
  }
  return `${JSON.stringify({ version, ...volume, takeOver, device, servers }, null, 2)}\n`
}

/** @throws Error that says what is wrong */
export function parseVolume(text: string): KeptVolume {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new Error('it is truncated or no JSON')
  }
  const from = record(value, 'it')
  if (from.version !== VERSION && from.version !== COMPRESSED_VERSION)
    throw new Error(
      `it has version ${JSON.stringify(from.version)?.slice(0, 64)}, this nbd-client reads versions ${VERSION} and ${COMPRESSED_VERSION}`,
    )
  only(from, 'it', [
    'version',
    'size',
    'slabSize',
    'replicas',
    'thin',
    'compressed',
    'takeOver',
    'servers',
    'context',
    'connecting',
    'device',
    'served',
    'boot',
  ])
  const servers = list(from.servers, 'servers').map(parseServer)
  if (new Set(servers.map(({ index }) => index)).size < servers.length)
    throw new Error('two servers have the same index')
  const volume = {
    size: multiple(whole(from.size, 'size', PAGE), 'size'),
    slabSize: powerOfTwo(whole(from.slabSize, 'slabSize', 2 ** 20, 2 ** 32), 'slabSize'),
    replicas: whole(from.replicas, 'replicas', 1, 3),
    servers,
    ...(flag(from.thin, 'thin') ? { thin: true } : {}),
    ...(flag(from.compressed, 'compressed') ? { compressed: true } : {}),
    ...(from.takeOver === undefined ? {} : { takeOver: parseTakeOver(from.takeOver) }),
    ...(from.context === undefined ? {} : { context: parseContext(from.context) }),
  }
  const served = flag(from.served, 'served')
  const uses = [served, from.device !== undefined, from.connecting !== undefined]
  if (uses.filter(Boolean).length > 1)
    throw new Error('it is of more than one of an export, a device and one that is being made')
  if (!served && from.boot !== undefined) throw new Error('it has the boot of an export, and is of none')
  if (served) return { ...volume, served, ...(from.boot === undefined ? {} : { boot: boot(from.boot) }) }
  if (from.connecting !== undefined) return { ...volume, connecting: word(from.connecting, 'connecting') }
  if (from.device === undefined) return volume
  const device = record(from.device, 'device')
  only(device, 'device', ['front', 'index', 'identifier', 'connections'])
  if (device.front !== undefined && device.front !== 'ublk')
    throw new Error('device.front is none that there is')
  return {
    ...volume,
    device: {
      front: device.front ?? 'nbd',
      index: whole(device.index, 'device.index', 0, 9999),
      identifier: word(device.identifier, 'device.identifier'),
      connections: whole(device.connections, 'device.connections', 1, 64),
    },
  }
}

function parseServer(value: unknown): KeptServer {
  const from = record(value, 'a server')
  const identity = record(from.identity, 'a server’s identity')
  only(from, 'a server', ['index', 'uris', 'identity', 'linger', 'away'])
  only(identity, 'a server’s identity', ['epoch', 'session', 'token'])
  const token = word(identity.token, 'token')
  if (!/^[0-9a-f]{32}$/.test(token)) throw new Error('token is not 16 bytes in hex')
  return {
    index: whole(from.index, 'index', 0, 1023),
    uris: list(from.uris, 'uris').map(address),
    identity: {
      epoch: word(identity.epoch, 'epoch'),
      session: whole(identity.session, 'session', 1),
      token: Uint8Array.from(Buffer.from(token, 'hex')),
    },
    linger: whole(from.linger, 'linger', 0),
    ...(flag(from.away, 'away') ? { away: true } : {}),
  }
}

function parseTakeOver(value: unknown): TakeOver {
  const from = record(value, 'takeOver')
  only(from, 'takeOver', ['number', 'instance'])
  const instance = word(from.instance, 'takeOver.instance')
  if (!/^[0-9a-f]*$/.test(instance) || instance.length !== 2 * INSTANCE_BYTES)
    throw new Error(`takeOver.instance is not ${INSTANCE_BYTES} bytes in hex`)
  return {
    number: whole(from.number, 'takeOver.number', 1),
    instance: Uint8Array.from(Buffer.from(instance, 'hex')),
  }
}

function parseContext(value: unknown): KeptContext {
  const from = record(value, 'context')
  const provider = PROVIDERS.find((each) => each === from.provider)
  if (provider === undefined) throw new Error('context.provider is none that there is')
  only(from, 'context', ['provider', 'name'])
  return { provider, name: word(from.name, 'context.name') }
}

function record(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new Error(`${what} is not an object`)
  return value as Record<string, unknown>
}

/** One field less is a volume that nobody has used, say: none may hide behind a name that is not known. */
/** A name with a typing error in it is worth showing; in a damaged file anything else may be a token. */
const SHOWN_FIELD = /^[A-Za-z]{1,20}$/

function only(value: Record<string, unknown>, what: string, names: readonly string[]): void {
  const other = Object.keys(value).find((name) => !names.includes(name))
  if (other !== undefined)
    throw new Error(`${what} has a field ${SHOWN_FIELD.test(other) ? `"${other}" ` : ''}that is unknown`)
}

function list(value: unknown, what: string): unknown[] {
  if (!Array.isArray(value) || value.length === 0) throw new Error(`${what} is not a list, or empty`)
  return value
}

function word(value: unknown, what: string): string {
  if (typeof value !== 'string' || value === '') throw new Error(`${what} is missing`)
  return value
}

function address(value: unknown): string {
  const uri = word(value, 'a uri')
  parseUri(uri)
  return uri
}

function boot(value: unknown): string {
  const id = word(value, 'boot')
  if (!BOOT_ID.test(id)) throw new Error('boot is not the name of one')
  return id
}

function flag(value: unknown, what: string): boolean {
  if (value !== undefined && typeof value !== 'boolean') throw new Error(`${what} is neither true nor false`)
  return value === true
}

function multiple(value: number, what: string): number {
  if (value % PAGE !== 0) throw new Error(`${what} is not a multiple of ${PAGE}`)
  return value
}

function powerOfTwo(value: number, what: string): number {
  if (!Number.isInteger(Math.log2(value))) throw new Error(`${what} is not a power of two`)
  return value
}

function whole(value: unknown, what: string, least: number, most = Number.MAX_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || (value as number) < least || (value as number) > most)
    throw new Error(`${what} is not a whole number from ${least} to ${most}`)
  return value as number
}
