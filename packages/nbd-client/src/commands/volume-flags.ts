import {
  argumentParser,
  checkFilePath,
  integerInRange,
  type ProgramCommand,
  parseAddress,
  parseSize,
  parseSizeInUnits,
  pathArgument,
} from '@rdmakit/operator-kit'
import type { BackupOptions, Compress } from '@rdmakit/remote-volume'
import { keyOf, tenantArgument } from '@rdmakit/swap-server/internal'
import { parseUri, UsageError } from '@rdmakit/verbs'
import { Option } from 'commander'

/** seconds */
export const DAY = 86_400

/** What serve and attach are told of their volume. */
export interface VolumeFlags {
  server: string[][]
  size: string
  connections: number
  timeout: number
  replicas: number
  ack: 'all' | 'one' | 'backup'
  refillRate: string
  readAhead: string
  checksum: boolean
  compress: Compress
  thin: boolean
  tenant?: string
  keyFile?: string
  metrics?: string
  backup?: string
  backupQueue?: string
  backupSparse: boolean
  state?: string
  linger: number
  reconnect: number
}

/** `rdma://a,iwarp://a` are the addresses of one server; each --server is another one. */
const serverOf = argumentParser((text: string): string[] =>
  text.split(',').map((each) => {
    const uri = each.trim()
    parseUri(uri)
    return uri
  }),
)

/** The options of a volume, for serve and attach. */
export function withVolume(command: ProgramCommand): ProgramCommand {
  return command
    .optionsGroup('The volume:')
    .requiredOption(
      '--server <uri[,uri…]>',
      'address of a swap-server: rdma://host:port, iwarp://host:port or shm:///path; separate several addresses of one server by commas; repeat the option for more servers',
      (text: string, servers: string[][] = []) => [...servers, serverOf(text)],
    )
    .requiredOption('--size <size>', 'size of the volume, a multiple of 4096, e.g. 512M')
    .option(
      '--replicas <n>',
      'copies of each page, on different servers: n - 1 servers may fail',
      integerInRange(1, 3),
      1,
    )
    .option(
      '--thin',
      'allocate memory on the servers when it is first written, and free it when it is discarded; writes fail when the servers have none left',
      false,
    )
    .option(
      '--tenant <name>',
      'tenant to allocate memory as, on servers with tenants; default "default"',
      tenantArgument,
    )
    .option(
      '--key-file <file>',
      'file holding the tenant key (id:secret); servers that do not have the key are refused',
    )
    .optionsGroup('When something fails:')
    .option(
      '--state <folder>',
      'folder (on tmpfs) that keeps what the next nbd-client needs to continue with the volume when this one ends',
      pathArgument,
    )
    .option(
      '--linger <seconds>',
      'with state: time for which the servers keep the memory while no nbd-client runs',
      integerInRange(1, DAY),
      300,
    )
    .option(
      '--reconnect <seconds>',
      'time for which requests wait for a lost server that has the only copy of their pages; 0: fail at once',
      integerInRange(0, 3_600),
      60,
    )
    .option(
      '--backup <file>',
      'keep a copy in a local file or block device, and read it when no server has a page any more',
      pathArgument,
    )
    .option(
      '--backup-queue <size>',
      'written pages that may wait for the backup; further pages are copied to it later; default 16M',
    )
    .option('--backup-sparse', 'reserve no disk space for the backup; a full disk ends it', false)
    .optionsGroup('Transfers:')
    .option(
      '--timeout <seconds>',
      'a remote operation that takes longer fails its server',
      integerInRange(1, 600),
      4,
    )
    .addOption(
      new Option(
        '--ack <when>',
        'answer a write when all replicas have it; when one has it (the write is lost if that server fails); or when all and the backup have it',
      )
        .choices(['all', 'one', 'backup'])
        .default('all'),
    )
    .option(
      '--refill-rate <size>',
      'maximum bytes per second when a replica is refilled after a failure; 0: no limit',
      '64M',
    )
    .option(
      '--read-ahead <size>',
      'bytes to read ahead of a client that reads sequentially, a multiple of 64K up to 1M; 0: none',
      '256K',
    )
    .option('--no-checksum', 'do not keep and verify a checksum of each page')
    .addOption(
      new Option(
        '--compress <how>',
        'compress pages on the wire (lz4: where it pays; lz4-always: always); requests must be whole pages',
      )
        .choices(['none', 'lz4', 'lz4-always'])
        .default('none'),
    )
    .optionsGroup('Monitoring:')
    .option('--metrics <host:port>', 'serve Prometheus metrics here; a port alone means loopback')
}

/** Checks what can be checked before anything is opened. */
export function volumeOf(options: VolumeFlags) {
  if (options.compress !== 'none' && !options.checksum)
    throw new UsageError('--compress needs checksums: leave out --no-checksum')
  if (options.metrics !== undefined) parseAddress(options.metrics, '--metrics')
  return {
    access: accessOf(options),
    metrics: options.metrics,
    state: options.state,
    linger: options.linger,
    reconnect: options.reconnect,
    servers: options.server,
    size: parseSizeInUnits(options.size, '--size', 4096),
    connections: options.connections,
    operationTimeout: options.timeout,
    replicas: options.replicas,
    acknowledge: options.ack,
    checksums: options.checksum,
    compress: options.compress,
    thin: options.thin,
    backup: backupOf(options),
    readAhead: readAheadOf(options.readAhead),
    refillRate: options.refillRate === '0' ? 0 : parseSize(options.refillRate, '--refill-rate'),
  }
}

function readAheadOf(text: string): number {
  const bytes = text === '0' ? 0 : parseSizeInUnits(text, '--read-ahead', 65_536)
  if (bytes > 1024 * 1024) throw new UsageError(`--read-ahead ${text} is more than 1M`)
  return bytes
}

/** Read anew for each session, so that a key can be exchanged. @throws ConfigurationError now if it is wrong */
function accessOf({ tenant, keyFile }: VolumeFlags) {
  if (keyFile !== undefined) keyOf(keyFile)
  return {
    ...(tenant === undefined ? {} : { tenant }),
    ...(keyFile === undefined ? {} : { key: () => keyOf(keyFile) }),
  }
}

function backupOf({ backup, backupQueue, backupSparse, ack, thin }: VolumeFlags): BackupOptions | undefined {
  if (backup !== undefined && thin)
    throw new UsageError('--thin and --backup do not go together: the file is as large as the volume')
  if (backup !== undefined) {
    checkFilePath(backup, '--backup')
    return {
      file: backup,
      sparse: backupSparse,
      ...(backupQueue === undefined ? {} : { queue: parseSize(backupQueue, '--backup-queue') }),
    }
  }
  if (backupQueue !== undefined || backupSparse || ack === 'backup')
    throw new UsageError('--ack backup, --backup-queue and --backup-sparse need --backup <file>')
  return undefined
}
