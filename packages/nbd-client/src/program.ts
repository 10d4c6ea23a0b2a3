#!/usr/bin/env -S node --expose-gc --no-incremental-marking
import {
  decideSignals,
  EXIT,
  ExitError,
  exitStatusOf,
  outliveReaders,
  outrunReaders,
  parseAddress,
  parseSize,
  parseSizeInUnits,
  readKeyFile,
  settleHeap,
  tellWarnings,
  watchSeconds,
  withExitStatus,
} from '@rdmakit/swap-server'
import { parseUri, UsageError } from '@rdmakit/verbs'
import { Command, InvalidArgumentError, Option } from 'commander'
import type { BackupOptions } from './backup.js'
import type { Front } from './device-name.js'
import type { TlsOptions } from './export-options.js'
import { checkExports, parseExport } from './exports.js'
import { installLastResort } from './last-resort.js'
import type { Compress } from './native.js'
import { say } from './session-log.js'

/** `rdma://a,iwarp://a` are the addresses of one server; each --server is another one. */
function server(text: string, servers: string[][]): string[][] {
  return [...servers, text.split(',').map((uri) => uri.trim())]
}

function whole(what: string, minimum: number, maximum: number) {
  return (text: string): number => {
    const value = Number(text)
    if (!/^\d+$/.test(text) || value < minimum || value > maximum)
      throw new InvalidArgumentError(`${what} is a whole number from ${minimum} to ${maximum}.`)
    return value
  }
}

interface VolumeOptions {
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

/** Read anew for each session, so that a key can be exchanged. @throws ConfigurationError now if it is wrong */
function accessOf({ tenant, keyFile }: VolumeOptions) {
  if (keyFile !== undefined) readKeyFile(keyFile)
  return {
    ...(tenant === undefined ? {} : { tenant }),
    ...(keyFile === undefined ? {} : { key: () => readKeyFile(keyFile) }),
  }
}

function backupOf({
  backup,
  backupQueue,
  backupSparse,
  ack,
  thin,
}: VolumeOptions): BackupOptions | undefined {
  if (backup !== undefined && thin)
    throw new UsageError('--thin and --backup do not go together: the file is as large as the volume')
  if (backup !== undefined)
    return {
      file: backup,
      sparse: backupSparse,
      ...(backupQueue === undefined ? {} : { queue: parseSize(backupQueue, '--backup-queue') }),
    }
  if (backupQueue !== undefined || backupSparse || ack === 'backup')
    throw new UsageError('--ack backup, --backup-queue and --backup-sparse need --backup <file>')
  return undefined
}

interface AttachFlags {
  /** false: --no-state */
  state?: string | false
  front: Front
  device?: string
  pin: boolean
  swap: boolean
  swapPriority?: number
}

/** Checks what can be checked before anything is opened. */
function volumeOf(options: VolumeOptions) {
  if (options.server.length === 0) throw new UsageError('at least one --server <uri> is needed')
  for (const uri of options.server.flat()) parseUri(uri)
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

/** `host:port` or `[v6]:port`. */
function tcpAddress(text: string): { host: string; port: number } {
  const [, bracketed, plain, port] = /^(?:\[([0-9a-fA-F:.]+)\]|([^:]+)):(\d{1,5})$/.exec(text) ?? []
  const host = bracketed ?? plain
  if (host === undefined || Number(port) > 65535)
    throw new UsageError(`--tcp "${text}" is not host:port; port 0 takes a free one`)
  return { host, port: Number(port) }
}

/** What serve offers: the whole volume, or the parts that --export names. */
function exportsOf(options: { export: string[]; exportName?: string; readOnly: boolean }, size: number) {
  const { exportName, readOnly } = options
  if (options.export.length === 0) return [{ name: exportName ?? '', description: 'remote memory', readOnly }]
  if (exportName !== undefined || readOnly)
    throw new UsageError(
      'with --export, write the name and ",read-only" there instead of --export-name and --read-only',
    )
  return checkExports(options.export.map(parseExport), size)
}

interface TlsFlags {
  tls: string
  tlsCertificates?: string
  tlsPsk?: string
  tlsVerifyPeer: boolean
}

function tlsOf(flags: TlsFlags): TlsOptions | undefined {
  const { tlsCertificates, tlsPsk, tlsVerifyPeer } = flags
  if (!['off', 'on', 'require'].includes(flags.tls))
    throw new UsageError(`--tls "${flags.tls}" is not one of off, on, require`)
  const credentials = [tlsCertificates, tlsPsk].filter((given) => given !== undefined)
  if (flags.tls === 'off') {
    if (credentials.length > 0 || tlsVerifyPeer)
      throw new UsageError(
        '--tls-certificates, --tls-psk and --tls-verify-peer need --tls=on or --tls=require',
      )
    return undefined
  }
  if (credentials.length !== 1) throw new UsageError('--tls needs one of --tls-certificates and --tls-psk')
  return {
    mode: flags.tls === 'on' ? 'on' : 'required',
    verifyPeer: tlsVerifyPeer,
    ...(tlsCertificates === undefined ? {} : { certificates: tlsCertificates }),
    ...(tlsPsk === undefined ? {} : { sharedKeys: tlsPsk }),
  }
}

/** Aborts at the first signal that is to end this process: SIGHUP too, of a terminal that was closed. */
function stopSignal(): AbortSignal {
  const stop = new AbortController()
  decideSignals({
    end: (name) => stop.abort(new ExitError(`ended by ${name}`, EXIT.ok)),
    hangup: 'end',
    say,
  })
  return stop.signal
}

const program = withExitStatus(new Command('nbd-client')).description(
  "Other machines' memory as a Linux block device, for swap, or as an NBD export.",
)

const withVolume = (command: Command) =>
  command
    .option(
      '--server <uri[,uri…]>',
      'a swap-server: rdma://host:port, iwarp://host:port or shm:///path; several addresses of one server with commas; repeat it for more servers',
      server,
      [] as string[][],
    )
    .requiredOption('--size <size>', 'size of the volume, a multiple of 4096, e.g. 512M')
    .option(
      '--timeout <seconds>',
      'a remote operation slower than this fails its server',
      whole('--timeout', 1, 600),
      4,
    )
    .option(
      '--replicas <n>',
      'copies of each page, on different servers, so that n - 1 of them may fail',
      whole('--replicas', 1, 3),
      1,
    )
    .addOption(
      new Option(
        '--ack <when>',
        'answer a write when all replicas have it, or one (which may lose it with that one), or all and the backup',
      )
        .choices(['all', 'one', 'backup'])
        .default('all'),
    )
    .option(
      '--refill-rate <size>',
      'per second, at most, when a replica is filled after a failure; 0: no limit',
      '64M',
    )
    .option(
      '--read-ahead <size>',
      'fetch so much ahead of a client that reads in order, a multiple of 64K up to 1M; 0: nothing',
      '256K',
    )
    .option(
      '--thin',
      'take memory of the servers when it is first written and give it back when it is discarded; when they have none left, writes fail',
      false,
    )
    .option('--no-checksum', 'keep no checksum of each page, and believe what the servers send')
    .addOption(
      new Option(
        '--compress <how>',
        'compress pages on the wire (lz4: where it pays; lz4-always: in any case); requests must be of whole pages',
      )
        .choices(['none', 'lz4', 'lz4-always'])
        .default('none'),
    )
    .option('--tenant <name>', 'whose memory to take, of servers with tenants; default "default"')
    .option('--key-file <file>', 'what proves it, a line id:secret; a server without the key is refused')
    .option(
      '--state <folder>',
      'keep there (on tmpfs) what the next nbd-client needs to go on with the volume when this one ends',
    )
    .option(
      '--linger <seconds>',
      'with state: how long the servers keep the memory without an nbd-client',
      whole('--linger', 1, 86_400),
      300,
    )
    .option(
      '--reconnect <seconds>',
      'how long requests wait for a server that is gone and alone has their pages, before they fail; 0: not at all',
      whole('--reconnect', 0, 3_600),
      60,
    )
    .option('--metrics <host:port>', 'serve metrics to Prometheus; a port alone is on loopback')
    .option(
      '--backup <file>',
      'keep a copy in a file or on a block device here, and go on from it when no server has a page any more',
    )
    .option(
      '--backup-queue <size>',
      'pages that may wait for the backup; those that find no room are copied to it later; default 16M',
    )
    .option('--backup-sparse', 'reserve no room for the backup; a full disk ends it', false)

withVolume(program.command('serve'))
  .description('Serve the volume to any NBD client. Prints "ready <nbd uri>". SIGTERM ends it.')
  .option('--unix <path>', 'listen on a Unix socket (mode 0600)')
  .option('--tcp <host:port>', 'listen on TCP; anyone who can connect can read and write')
  .option('--connections <n>', 'NBD connections served at once', whole('--connections', 1, 64), 8)
  .option(
    '--export <name[,offset=size][,size=size][,read-only][,description=text]>',
    'a part of the volume under a name; repeat it for more; the first is the default one',
    (text: string, exports: string[]) => [...exports, text],
    [] as string[],
  )
  .option('--export-name <name>', 'name of the one export of the whole volume; the empty name always works')
  .option('--read-only', 'refuse writes to it', false)
  .option(
    '--minimum-block <bytes>',
    'refuse requests that are no multiple of it; a power of two, at most 4096',
    whole('--minimum-block', 1, 4096),
    1,
  )
  .option('--tls <off|on|require>', 'offer TLS to clients, or serve nobody without it', 'off')
  .option(
    '--tls-certificates <folder>',
    'server-cert.pem, server-key.pem and, to verify clients, ca-cert.pem',
  )
  .option('--tls-psk <file>', 'instead of certificates: shared keys as psktool writes them, name:hex')
  .option('--tls-verify-peer', 'serve only clients with a certificate signed by ca-cert.pem', false)
  .addHelpText(
    'after',
    `
Examples:
  nbd-client serve --server iwarp://127.0.0.1:7471 --size 1G --unix /tmp/memory.sock
  nbdinfo 'nbd+unix:///?socket=/tmp/memory.sock'
  nbd-client serve --server iwarp://127.0.0.1:7471 --size 1G --tcp 127.0.0.1:10809 \\
    --export data,size=768M --export scratch,offset=768M --export data-ro,size=768M,read-only

When the last server is lost, clients get I/O errors, the socket is removed and the exit status is 1.
With --state the volume outlives the process, for --linger: the same command serves it again.`,
  )
  .action(
    async (
      options: VolumeOptions & {
        unix?: string
        tcp?: string
        export: string[]
        exportName?: string
        readOnly: boolean
        minimumBlock: number
      } & TlsFlags,
    ) => {
      if ((options.unix === undefined) === (options.tcp === undefined))
        throw new UsageError('give one of --unix <path> and --tcp <host:port>')
      const volume = volumeOf(options)
      const address = options.unix === undefined ? tcpAddress(options.tcp as string) : { unix: options.unix }
      const exports = exportsOf(options, volume.size)
      const minimumBlockSize = options.minimumBlock
      if ((minimumBlockSize & (minimumBlockSize - 1)) !== 0)
        throw new UsageError(`--minimum-block ${minimumBlockSize} is not a power of two`)
      const tls = tlsOf(options)
      outrunReaders()
      installLastResort()
      const { serve } = await import('./serve.js')
      settleHeap()
      const signal = stopSignal()
      process.exitCode = await serve({ ...volume, address, exports, minimumBlockSize, tls, signal })
    },
  )

withVolume(program.command('attach'))
  .description(
    'Attach the volume as /dev/nbdN or /dev/ublkbN. Prints "attached /dev/nbdN" and stays; SIGTERM detaches.',
  )
  .addOption(
    new Option(
      '--front <driver>',
      "the kernel's driver that makes the device: ublk takes less of the processor for a page, nbd is on every system",
    )
      .choices(['nbd', 'ublk'])
      .default('nbd'),
  )
  .option('--device <device>', 'which device; default the first free one')
  .option(
    '--connections <n>',
    'sockets between kernel and client, or queues',
    whole('--connections', 1, 64),
    2,
  )
  .option(
    '--no-pin',
    'let the threads that serve the kernel run on any processor, not only where it sends them requests',
  )
  .option(
    '--swap',
    'make it swap: locks memory, runs mkswap and swapon, keeps state; SIGTERM runs swapoff first',
    false,
  )
  .option('--no-state', 'with --swap: keep none; the swap is lost with the process')
  .option(
    '--swap-priority <n>',
    'priority of the swap, higher is used first',
    whole('--swap-priority', 0, 32767),
  )
  .addHelpText(
    'after',
    `
Examples:
  nbd-client attach --server rdma://10.0.0.1:7471 --size 4G --swap
  nbd-client attach --server rdma://10.0.0.1:7471,iwarp://10.0.0.1:7472 --size 4G --device /dev/nbd3
  nbd-client attach --server rdma://10.0.0.1:7471 --size 4G --swap --state /run/rdmakit/swap0

With --swap or --state the device and its pages outlive a process that is killed or fails: the same command takes
them over. Without --state the folder is one in the run directory, which goes with the device.
Needs root and the nbd kernel module, or with --front ublk, ublk_drv.`,
  )
  .action(async ({ state, ...options }: Omit<VolumeOptions, 'state'> & AttachFlags) => {
    const volume = { ...volumeOf(options), state }
    outrunReaders()
    installLastResort()
    const { attach, chosenDevice } = await import('./attach.js')
    chosenDevice(options)
    const { startSwapFree } = await import('./start-swap-free.js')
    // Without --swap, too: somebody may make the device swap.
    const swapFree = await startSwapFree()
    settleHeap()
    const { front, device, pin, swap, swapPriority } = options
    process.exitCode = await attach({
      ...volume,
      front,
      device,
      pin,
      swap,
      swapPriority,
      swapFree,
      signal: stopSignal(),
    })
  })

program
  .command('detach')
  .argument('<device>', 'e.g. /dev/nbd0')
  .description('Detach a device: swapoff if it is swap, then the end of its nbd-client.')
  .option('--timeout <seconds>', 'how long that may take', whole('--timeout', 1, 86_400), 300)
  .option('--force', 'end it also when it is in use, holds pages that are lost then, or is not ours', false)
  .addHelpText(
    'after',
    `
A device that is in use is not detached, and what uses it is named: mounts, devices of dm, md, zram or loop on it or
on its partitions, processes that have it open. Neither is one whose pages only the next "nbd-client attach --state"
can bring back, nor one that another program has made. With --force, swapoff may take --timeout; then the device
ends, whoever uses it gets I/O errors, and programs that touch a page that is lost are killed.`,
  )
  .action(async (device: string, options: { timeout: number; force: boolean }) => {
    const { detach } = await import('./detach.js')
    await detach(device, options)
  })

program
  .command('upgrade')
  .argument('[device]', 'e.g. /dev/nbd0; default the one that is attached')
  .argument('[command...]', 'after --: the new command line, nbd-client attach …; default the old one')
  .option('--pid <pid>', 'instead of a device: the process that has it', whole('--pid', 1, 2 ** 22))
  .description(
    'Let a new process, of a new version say, go on with a device: its requests wait for a moment.',
  )
  .addHelpText(
    'after',
    `
Examples:
  nbd-client upgrade
  nbd-client upgrade /dev/nbd0 -- /opt/rdmakit-2/bin/nbd-client attach --server rdma://10.0.0.1:7471 \\
    --size 4G --device /dev/nbd0 --swap

If the new process fails, the old one goes on, and the exit status is 1.`,
  )
  .action(async (device: string | undefined, command: string[], { pid }: { pid?: number }) => {
    const { upgrade } = await import('./upgrade.js')
    const which = { ...(device === undefined ? {} : { device }), ...(pid === undefined ? {} : { pid }) }
    const done = await upgrade(which, command.length === 0 ? undefined : command)
    process.stdout.write(
      `upgraded ${done.device}: process ${done.pid} goes on, requests waited ${done.pause} ms\n`,
    )
  })

program
  .command('status')
  .description('Show the running nbd-clients of this machine.')
  .option('--json', 'as a JSON array; with --watch one each line', false)
  .option('--watch [seconds]', 'again and again, each second or as often as said', watchSeconds)
  .action(async ({ json, watch }: { json: boolean; watch?: number | true }) => {
    const { printClientStatus } = await import('./status.js')
    await printClientStatus({ json, seconds: watch === true ? 1 : watch })
  })

// A command is over when it says so. Node.js would end it when nothing of its own is open any more, and a volume
// that has no server left, only its backup, lives in the engine alone.
setInterval(() => {}, 2 ** 30)

outliveReaders()
tellWarnings(({ name, message }) => say(`${name}: ${message}`))
program.parseAsync().then(
  // What the commands opened is closed by now; nothing else may keep the process.
  () => process.exit(),
  (failure: Error) => {
    process.stderr.write(`nbd-client: ${failure.message}\n`)
    process.exit(exitStatusOf(failure))
  },
)
