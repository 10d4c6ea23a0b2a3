import type { VolumeEngineOptions } from '@rdmakit/remote-volume'
import type { ExportOptions, TlsOptions } from './export-options.js'
import type { NativeFrontOptions } from './native.js'

/** Of a volume and of the NBD clients that it serves. */
export interface BlockEngineOptions extends VolumeEngineOptions, FrontOptions {}

/** How NBD clients are served. */
export interface FrontOptions {
  /**
   * What NBD clients find here. The first one is also what they get who name none, unless another one has
   * the empty name. Default: the whole volume under the empty name.
   */
  readonly exports?: readonly ExportOptions[] | undefined
  /**
   * Bytes, a power of two of at most 4096: requests that are no multiple of it are refused with EINVAL.
   * Default 1: every request is served, at the price that a part of a page costs a network round trip more
   * when the page was never written.
   */
  readonly minimumBlockSize?: number | undefined
  /** default: no TLS; what is wrong with the files is thrown by the constructor (ENOKEY) */
  readonly tls?: TlsOptions | undefined
  /** milliseconds for a client's whole handshake; default 10000 */
  readonly handshakeTimeout?: number | undefined
  /**
   * Handshakes under way at once; default 1024. When there are more, or no descriptor is left, the oldest is closed: a client that
   * speaks the protocol is done within milliseconds, so no number of silent or slow ones keeps it out.
   */
  readonly maxHandshakes?: number | undefined
  /**
   * Milliseconds that a client on a socket may take for the rest of a request that it has begun (and a second
   * more for each 256 KiB of payload), or for taking the next byte of its answers, before it is thrown out
   * and its lane is free again; default 30000, 0: for ever. Between requests it may rest as long as it likes.
   */
  readonly stallTimeout?: number | undefined
  /**
   * Milliseconds that a client waits for a free lane before it is refused; default 2000. The export
   * says CAN_MULTI_CONN from 4 lanes on, for nbdcopy opens 4 connections and fails when one is refused.
   */
  readonly laneWait?: number | undefined
}

/** With the defaults, as the addon takes it. */
export function frontOptions(options: FrontOptions): NativeFrontOptions {
  return {
    exports: (options.exports ?? [{}]).map((each) => ({
      name: each.name ?? '',
      description: each.description ?? '',
      offset: BigInt(each.offset ?? 0),
      size: BigInt(each.size ?? 0),
      readOnly: each.readOnly ?? false,
    })),
    tls: {
      mode: options.tls?.mode ?? 'off',
      certificates: options.tls?.certificates ?? '',
      sharedKeys: options.tls?.sharedKeys ?? '',
      verifyPeer: options.tls?.verifyPeer ?? false,
    },
    minimumBlockSize: options.minimumBlockSize ?? 1,
    handshakeTimeout: options.handshakeTimeout ?? 10_000,
    maxHandshakes: options.maxHandshakes ?? 1_024,
    stallTimeout: options.stallTimeout ?? 30_000,
    laneWait: options.laneWait ?? 2000,
  }
}
