import { accessSync, constants } from 'node:fs'
import { join } from 'node:path'
import {
  checkSocketPath,
  describeFileError,
  disableIdleGc,
  EXIT,
  integerInRange,
  makeStdioNonBlocking,
  type ProgramCommand,
} from '@rdmakit/operator-kit'
import { ConfigurationError } from '@rdmakit/swap-server'
import { UsageError } from '@rdmakit/verbs'
import { Option } from 'commander'
import type { TlsOptions } from '../engine/export-options.js'
import { installLastResort } from '../report/last-resort.js'
import { checkExports, checkString, parseExport } from './export-flags.js'
import { stopSignal } from './stop-signal.js'
import { type VolumeFlags, volumeOf, withVolume } from './volume-flags.js'

interface ServeFlags extends VolumeFlags, TlsFlags {
  unix?: string
  tcp?: string
  export: string[]
  exportName?: string
  readOnly: boolean
  minimumBlock: number
}

interface TlsFlags {
  tls: string
  tlsCertificates?: string
  tlsPsk?: string
  tlsVerifyPeer: boolean
}

/** @param typed how the program is called */
export function addServe(program: ProgramCommand, typed: string): void {
  withVolume(
    program
      .command('serve')
      .description('Serve the volume to any NBD client. Prints "ready <nbd uri>". SIGTERM ends it.')
      .optionsGroup('Listeners and exports:')
      .option('--unix <path>', 'listen on a Unix socket (mode 0600)')
      .option('--tcp <host:port>', 'listen on TCP; anyone who can connect can read and write')
      .option('--connections <n>', 'NBD connections served at once', integerInRange(1, 64), 8)
      .option(
        '--export <name[,offset=size][,size=size][,read-only][,description=text]>',
        'export a part of the volume under a name; repeat the option for more; the first is the default export',
        (text: string, exports: string[]) => [...exports, text],
        [] as string[],
      )
      .option('--export-name <name>', 'name of the export of the whole volume; the empty name always works')
      .option('--read-only', 'refuse writes', false)
      .option(
        '--minimum-block <bytes>',
        'refuse requests that are not a multiple of this size; a power of two, at most 4096',
        integerInRange(1, 4096),
        1,
      )
      .optionsGroup('TLS:')
      .addOption(
        new Option('--tls <when>', 'offer TLS to clients, or require it')
          .choices(['off', 'on', 'require'])
          .default('off'),
      )
      .option(
        '--tls-certificates <folder>',
        'folder with server-cert.pem, server-key.pem and, to verify clients, ca-cert.pem',
      )
      .option(
        '--tls-psk <file>',
        'instead of certificates: file of shared keys as psktool writes them (name:hex)',
      )
      .option('--tls-verify-peer', 'accept only clients with a certificate signed by ca-cert.pem', false),
  )
    .optionsGroup('Options:')
    .withNotes({
      notes: [
        `When the last server is lost, clients get I/O errors, the socket is removed and the exit status is ${EXIT.failed}. With --state the volume outlives the process, for --linger: the same command serves it again.`,
      ],
      examples: [
        `${typed} serve --server iwarp://127.0.0.1:7471 --size 1G --unix /tmp/memory.sock`,
        `${typed} serve --server iwarp://127.0.0.1:7471 --size 1G --tcp 127.0.0.1:10809 --export data,size=768M --export scratch,offset=768M --export data-ro,size=768M,read-only`,
      ],
    })
    .action(async (options: ServeFlags) => {
      if ((options.unix === undefined) === (options.tcp === undefined))
        throw new UsageError('give one of --unix <path> and --tcp <host:port>')
      const volume = volumeOf(options)
      const { unix } = options
      if (unix !== undefined) checkSocketPath(unix, '--unix')
      const address = unix === undefined ? tcpAddress(options.tcp as string) : { unix }
      const exports = exportsOf(options, volume.size)
      const minimumBlockSize = options.minimumBlock
      if ((minimumBlockSize & (minimumBlockSize - 1)) !== 0)
        throw new UsageError(`--minimum-block ${minimumBlockSize} is not a power of two`)
      const tls = tlsOf(options)
      makeStdioNonBlocking()
      installLastResort()
      const { serve } = await import('../export/serve.js')
      disableIdleGc()
      const signal = stopSignal()
      process.exitCode = await serve({ ...volume, address, exports, minimumBlockSize, tls, signal })
    })
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
function exportsOf(options: ServeFlags, size: number) {
  const { exportName, readOnly } = options
  checkString(exportName ?? '', '--export-name: it')
  if (options.export.length === 0) return [{ name: exportName ?? '', description: 'remote memory', readOnly }]
  if (exportName !== undefined || readOnly)
    throw new UsageError(
      'with --export, write the name and ",read-only" there instead of --export-name and --read-only',
    )
  return checkExports(options.export.map(parseExport), size)
}

function tlsOf(flags: TlsFlags): TlsOptions | undefined {
  const { tlsCertificates, tlsPsk, tlsVerifyPeer } = flags
  const credentials = [tlsCertificates, tlsPsk].filter((given) => given !== undefined)
  if (flags.tls === 'off') {
    if (credentials.length > 0 || tlsVerifyPeer)
      throw new UsageError(
        '--tls-certificates, --tls-psk and --tls-verify-peer need --tls=on or --tls=require',
      )
    return undefined
  }
  if (credentials.length !== 1) throw new UsageError('--tls needs one of --tls-certificates and --tls-psk')
  if (tlsVerifyPeer && tlsPsk !== undefined)
    throw new UsageError(
      '--tls-verify-peer needs --tls-certificates: with --tls-psk the key shows who a client is',
    )
  if (tlsPsk !== undefined) checkReadable(tlsPsk, '--tls-psk')
  if (tlsCertificates !== undefined) {
    const files = ['server-cert.pem', 'server-key.pem', ...(tlsVerifyPeer ? ['ca-cert.pem'] : [])]
    for (const file of files) checkReadable(join(tlsCertificates, file), '--tls-certificates')
  }
  return {
    mode: flags.tls === 'on' ? 'on' : 'required',
    verifyPeer: tlsVerifyPeer,
    ...(tlsCertificates === undefined ? {} : { certificates: tlsCertificates }),
    ...(tlsPsk === undefined ? {} : { sharedKeys: tlsPsk }),
  }
}

/** @throws ConfigurationError */
function checkReadable(file: string, option: string): void {
  try {
    accessSync(file, constants.R_OK)
  } catch (failure) {
    throw new ConfigurationError(`${option} ${file}: ${describeFileError(failure)}`)
  }
}
