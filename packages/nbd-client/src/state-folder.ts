import {
  chmodSync,
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { ConfigurationError, EXIT, ExitError, type SessionIdentity } from '@rdmakit/swap-server'
import type { ProviderName } from '@rdmakit/verbs'
import { closeDescriptor, lockFile } from './kernel.js'

const VOLUME = 'volume.json'
/** Of it. What knows only the first one would take compressed pages for wrong ones. */
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
}

export interface KeptDevice {
  /** of /dev/nbdINDEX */
  readonly index: number
  /** of the backend: what the kernel must hear again */
  readonly identifier: string
  /** sockets that the kernel has */
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
  readonly servers: readonly KeptServer[]
  readonly context?: KeptContext
  /** of attach; undefined until the kernel has the device */
  readonly device?: KeptDevice
  /** of serve: clients may have written to it */
  readonly served?: boolean
}

/** The folder that lets a successor of this process go on with its volume (docs/page-service/restart.md). */
export class StateFolder {
  readonly path: string
  readonly #lock: number

  private constructor(path: string, lock: number) {
    this.path = path
    this.#lock = lock
  }

  /**
   * Makes the folder if it is missing, and locks it.
   * @throws ExitError: another process has it; ConfigurationError: others may look into it
   */
  static open(path: string): StateFolder {
    mkdirSync(path, { recursive: true, mode: 0o700 })
    const { mode, uid } = statSync(path)
    if ((mode & 0o077) !== 0 || uid !== process.geteuid?.())
      throw new ConfigurationError(
        `--state ${path} holds what opens the volume, and must be yours with mode 0700; run chmod 700 ${path}`,
      )
    try {
      return new StateFolder(path, lockFile(join(path, 'lock')))
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code !== 'EBUSY') throw failure
      throw new ExitError(
        `--state ${path} is in use by another nbd-client; give each volume its own folder`,
        EXIT.taken,
      )
    }
  }

  /** One whose lock another process has handed over. */
  static inherit(path: string, lock: number): StateFolder {
    return new StateFolder(path, lock)
  }

  /** What a folder that another process has locked holds now. @throws as {@link read} */
  static look(path: string): KeptVolume | undefined {
    return readVolume(join(path, VOLUME))
  }

  /** Of the lock: whoever has it open has the folder. */
  get lock(): number {
    return this.#lock
  }

  get pageMap(): string {
    return join(this.path, 'pages.map')
  }

  get pageChecksums(): string {
    return join(this.path, 'pages.crc')
  }

  get pageLengths(): string {
    return join(this.path, 'pages.lz4')
  }

  get backupMap(): string {
    return join(this.path, 'backup.map')
  }

  get slabMap(): string {
    return join(this.path, 'slabs.map')
  }

  /** @returns undefined when nothing is kept @throws ConfigurationError that says what is wrong with volume.json */
  read(): KeptVolume | undefined {
    return readVolume(this.#volume)
  }

  /** Replaces volume.json in one step: whoever reads it finds the old one or the new one. */
  write(volume: KeptVolume): void {
    const temporary = `${this.#volume}.new`
    const file = openSync(temporary, 'w', 0o600)
    try {
      chmodSync(temporary, 0o600) // also when a file of that name was left behind
      writeSync(file, formatVolume(volume))
      fsyncSync(file)
    } finally {
      closeSync(file)
    }
    renameSync(temporary, this.#volume)
    const folder = openSync(this.path, 'r')
    try {
      fsyncSync(folder)
    } finally {
      closeSync(folder)
    }
  }

  /** Nothing is kept any more: volume.json goes first, for without it the maps mean nothing. */
  clear(): void {
    const maps = [this.slabMap, this.pageChecksums, this.pageLengths, this.backupMap, this.pageMap]
    for (const file of [this.#volume, `${this.#volume}.new`, ...maps]) rmSync(file, { force: true })
  }

  /** The next process finds no checksums: this one keeps none, and those that there are would be of old pages. */
  forgetChecksums(): void {
    rmSync(this.pageChecksums, { force: true })
  }

  /** The same of the backup: this process writes pages without it, so the next one must not believe the map. */
  forgetBackup(): void {
    rmSync(this.backupMap, { force: true })
  }

  /** Unlocks it. */
  close(): void {
    closeDescriptor(this.#lock)
  }

  get #volume(): string {
    return join(this.path, VOLUME)
  }
}

function readVolume(file: string): KeptVolume | undefined {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (failure) {
    if ((failure as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw failure
  }
  try {
    return parseVolume(text)
  } catch (failure) {
    throw new ConfigurationError(
      `${file} cannot be used: ${(failure as Error).message}; if no device rests on it, remove the folder's files`,
    )
  }
}

export function formatVolume(volume: KeptVolume): string {
  const servers = volume.servers.map(({ identity, ...rest }) => ({
    ...rest,
    identity: { ...identity, token: Buffer.from(identity.token).toString('hex') },
  }))
  const version = volume.compressed === true ? COMPRESSED_VERSION : VERSION
  return `${JSON.stringify({ version, ...volume, servers }, null, 2)}\n`
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
      `it has version ${JSON.stringify(from.version)}, this nbd-client reads versions ${VERSION} and ${COMPRESSED_VERSION}`,
    )
  const servers = list(from.servers, 'servers').map(parseServer)
  if (new Set(servers.map(({ index }) => index)).size < servers.length)
    throw new Error('two servers have the same index')
  const volume = {
    size: whole(from.size, 'size', 4096),
    slabSize: whole(from.slabSize, 'slabSize', 2 ** 20),
    replicas: whole(from.replicas, 'replicas', 1, 3),
    servers,
    ...(from.thin === true ? { thin: true } : {}),
    ...(from.compressed === true ? { compressed: true } : {}),
    ...(from.context === undefined ? {} : { context: parseContext(from.context) }),
  }
  if (from.served === true) return { ...volume, served: true }
  if (from.device === undefined) return volume
  const device = record(from.device, 'device')
  return {
    ...volume,
    device: {
      index: whole(device.index, 'device.index', 0, 9999),
      identifier: word(device.identifier, 'device.identifier'),
      connections: whole(device.connections, 'device.connections', 1, 64),
    },
  }
}

function parseServer(value: unknown): KeptServer {
  const from = record(value, 'a server')
  const identity = record(from.identity, 'a server’s identity')
  const token = word(identity.token, 'token')
  if (!/^[0-9a-f]{32}$/.test(token)) throw new Error('token is not 16 bytes in hex')
  return {
    index: whole(from.index, 'index', 0, 1023),
    uris: list(from.uris, 'uris').map((uri) => word(uri, 'a uri')),
    identity: {
      epoch: word(identity.epoch, 'epoch'),
      session: whole(identity.session, 'session', 1),
      token: Uint8Array.from(Buffer.from(token, 'hex')),
    },
    linger: whole(from.linger, 'linger', 0),
  }
}

function parseContext(value: unknown): KeptContext {
  const from = record(value, 'context')
  const provider = PROVIDERS.find((each) => each === from.provider)
  if (provider === undefined) throw new Error('context.provider is none that there is')
  return { provider, name: word(from.name, 'context.name') }
}

function record(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new Error(`${what} is not an object`)
  return value as Record<string, unknown>
}

function list(value: unknown, what: string): unknown[] {
  if (!Array.isArray(value) || value.length === 0) throw new Error(`${what} is not a list, or empty`)
  return value
}

function word(value: unknown, what: string): string {
  if (typeof value !== 'string' || value === '') throw new Error(`${what} is missing`)
  return value
}

function whole(value: unknown, what: string, least: number, most = Number.MAX_SAFE_INTEGER): number {
  if (!Number.isSafeInteger(value) || (value as number) < least || (value as number) > most)
    throw new Error(`${what} is not a whole number from ${least} to ${most}`)
  return value as number
}
