/** A part of the volume under a name. Parts may overlap: one writable and one read-only view, say. */
export interface ExportOptions {
  /** at most 4096 bytes; default '' */
  readonly name?: string | undefined
  /** one line for people, as `nbdinfo --list` shows it; at most 4096 bytes; default '' */
  readonly description?: string | undefined
  /** bytes from the start of the volume, a multiple of 4096; default 0 */
  readonly offset?: number | bigint | undefined
  /** bytes, a multiple of 4096; default: up to the end of the volume */
  readonly size?: number | bigint | undefined
  /** refuse WRITE, TRIM and WRITE_ZEROES with EPERM; default false */
  readonly readOnly?: boolean | undefined
}

/**
 * TLS for NBD clients (STARTTLS), by GnuTLS, in a native thread for each encrypted connection. Give either
 * `certificates` or `sharedKeys`.
 */
export interface TlsOptions {
  /** `on`: clients may use it; `required`: whoever does not is refused everything else */
  readonly mode: 'on' | 'required'
  /** folder with server-cert.pem, server-key.pem and, for `verifyPeer`, ca-cert.pem */
  readonly certificates?: string | undefined
  /** file with a line `name:hex key` for each client, as psktool(1) writes it */
  readonly sharedKeys?: string | undefined
  /** with `certificates`: refuse clients without one that ca-cert.pem has signed; default false */
  readonly verifyPeer?: boolean | undefined
}
