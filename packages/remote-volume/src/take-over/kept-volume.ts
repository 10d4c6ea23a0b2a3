import { integerOf } from '@rdmakit/operator-kit'
import { INSTANCE_BYTES, type SessionIdentity, type TakeOver } from '@rdmakit/swap-server'
import { type ProviderName, parseUri } from '@rdmakit/verbs'
import { flag, list, multiple, only, powerOfTwo, record, word } from './json-fields.js'

const PAGE = 4096
const PROVIDERS: readonly ProviderName[] = ['ibverbs', 'iwarp', 'shm']

/** A server of the volume as it is kept; its index is the one that the slab map uses. */
export interface KeptServer {
  readonly index: number
  readonly uris: readonly string[]
  readonly identity: SessionIdentity
  /** milliseconds that its session lingers */
  readonly linger: number
  /** it failed, and what slabs on record have their only replica there have all that was ever answered */
  readonly away?: boolean
}

/** The RDMA device that reaches the servers, also when none of them is there to tell. */
export interface KeptContext {
  readonly provider: ProviderName
  readonly name: string
}

/** The state that the next process needs to continue a volume, besides the maps of its engine. */
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
}

/** The fields of {@link KeptVolume}. */
export const KEPT_FIELDS = [
  'size',
  'slabSize',
  'replicas',
  'thin',
  'compressed',
  'takeOver',
  'servers',
  'context',
] as const

/** The part that JSON can hold; additional fields stay as they are. */
export function formatKept<Kept extends KeptVolume>(volume: Kept) {
  const servers = volume.servers.map(({ identity, ...rest }) => ({
    ...rest,
    identity: { ...identity, token: Buffer.from(identity.token).toString('hex') },
  }))
  const takeOver = volume.takeOver && {
    ...volume.takeOver,
    instance: Buffer.from(volume.takeOver.instance).toString('hex'),
  }
  return { ...volume, takeOver, servers }
}

/** @throws Error that says what is wrong */
export function parseKept(from: Readonly<Record<string, unknown>>): KeptVolume {
  const servers = list(from.servers, 'servers').map(parseServer)
  if (new Set(servers.map(({ index }) => index)).size < servers.length)
    throw new Error('two servers have the same index')
  return {
    size: multiple(integerOf(from.size, 'size', PAGE), PAGE, 'size'),
    slabSize: powerOfTwo(integerOf(from.slabSize, 'slabSize', 2 ** 20, 2 ** 32), 'slabSize'),
    replicas: integerOf(from.replicas, 'replicas', 1, 3),
    servers,
    ...(flag(from.thin, 'thin') ? { thin: true } : {}),
    ...(flag(from.compressed, 'compressed') ? { compressed: true } : {}),
    ...(from.takeOver === undefined ? {} : { takeOver: parseTakeOver(from.takeOver) }),
    ...(from.context === undefined ? {} : { context: parseContext(from.context) }),
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
    index: integerOf(from.index, 'index', 0, 1023),
    uris: list(from.uris, 'uris').map(address),
    identity: {
      epoch: word(identity.epoch, 'epoch'),
      session: integerOf(identity.session, 'session', 1),
      token: Uint8Array.from(Buffer.from(token, 'hex')),
    },
    linger: integerOf(from.linger, 'linger', 0),
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
    number: integerOf(from.number, 'takeOver.number', 1),
    instance: Uint8Array.from(Buffer.from(instance, 'hex')),
  }
}

function parseContext(value: unknown): KeptContext {
  const from = record(value, 'context')
  const provider = PROVIDERS.find((each) => each === from.provider)
  if (provider === undefined) throw new Error('context.provider is unknown')
  only(from, 'context', ['provider', 'name'])
  return { provider, name: word(from.name, 'context.name') }
}

function address(value: unknown): string {
  const uri = word(value, 'a uri')
  parseUri(uri)
  return uri
}
