import { getDefaultAutoSelectFamilyAttemptTimeout } from 'node:net'
import { copyOfBytes } from '../base/arguments.js'
import { countdown, type Deferred, deferred, milliseconds, within } from '../base/deferred.js'
import { ConnectionRejectedError, calling, errorOfStatus, UsageError, VerbsError } from '../base/errors.js'
import { HoldingResource } from '../base/holding-resource.js'
import { Context } from '../device/context.js'
import type { ProtectionDomain } from '../device/protection-domain.js'
import { type Handle, type NativeAddress, type NativeCmEvent, native, type ProviderName } from '../native.js'
import { QueuePair, type QueuePairOptions } from '../queue-pair/queue-pair.js'
import { addressesOf } from './addresses.js'
import { type Endpoint, formatUri, parseUri } from './uri.js'

/** How long a connection step may take when the caller names no time. */
const DEFAULT_TIMEOUT_MS = 5_000
const NOTHING = new Uint8Array()

/** How long to wait, and what ends it before. */
export interface WaitOptions {
  /** ends the wait with its reason */
  readonly signal?: AbortSignal | undefined
  /** milliseconds above 0, at most 2^31 − 1, or Infinity, which means 2^31 − 1; default 5000 */
  readonly timeout?: number | undefined
}

/** What {@link ConnectionId.connect} and {@link ConnectionId.accept} take. */
export interface ConnectOptions extends WaitOptions {
  /** at most 56 bytes on InfiniBand and RoCE, 512 on iWARP (rdma_connect(3)) */
  readonly privateData?: Uint8Array | undefined
  /** RDMA READs of the peer that this side serves at once, 0 … 255; default and maximum: the device's limit */
  readonly responderResources?: number | undefined
  /** RDMA READs that this side keeps outstanding, 0 … 255; default and maximum: the device's limit */
  readonly initiatorDepth?: number | undefined
}

/** Why a connection ended: `undefined` after an orderly close by the peer or this side. */
export type DisconnectReason = VerbsError | undefined

/**
 * One end of a reliable connection (rdma_cm_id). A connector goes `resolve` → `createQueuePair` →
 * `connect`; an acceptor gets one from a {@link Listener} and goes `createQueuePair` → `accept`. It keeps the event
 * loop alive during each step, and from then on until the connection has ended.
 */
export class ConnectionId extends HoldingResource {
  /** settles once, when an established connection has ended; never rejects */
  readonly disconnected: Promise<DisconnectReason>
  readonly #disconnected: Deferred<DisconnectReason>
  readonly description: string
  /** which provider carries the connection */
  readonly provider: ProviderName
  #step: Deferred<NativeCmEvent> | undefined
  #context: Context | undefined
  #queuePair: QueuePair | undefined
  #established = false

  private constructor(handle: Handle, provider: ProviderName, description: string) {
    super(handle, [])
    this.provider = provider
    this.description = description
    this.#disconnected = deferred<DisconnectReason>()
    this.disconnected = this.#disconnected.promise
    native.setIdSink(handle, (event) => this.#on(event))
  }

  /**
   * Resolves address and route of `uri`, and so finds the device with a route to it (rdma_resolve_addr(3),
   * rdma_resolve_route(3)). Of a name with several addresses, the first one that a device reaches is used; over `iwarp`
   * {@link connect} tries all of them in order, as Node's net does.
   * @throws UsageError for a bad URI or timeout; VerbsError ENODEV when no RDMA device reaches it, ETIMEDOUT,
   *   ENOTFOUND for an unknown host name; the signal's reason
   */
  static async resolve(
    uri: string,
    { signal, timeout: wanted = DEFAULT_TIMEOUT_MS }: WaitOptions = {},
  ): Promise<ConnectionId> {
    const timeout = milliseconds('timeout', wanted)
    const endpoint = parseUri(uri)
    if (endpoint.port === 0 && endpoint.provider !== 'shm')
      throw new UsageError(`"${uri}" names port 0; a peer listens on a real port`)
    const description = `connection to ${uri}`
    const remaining = countdown(timeout)
    const hosts = await addressesOf(endpoint.host, description, { signal, timeout })
    // A software device is the same whichever address answers: connect finds out.
    if (endpoint.provider !== 'ibverbs')
      return await ConnectionId.#resolve(endpoint, hosts, description, { signal, timeout })
    for (const [at, host] of hosts.entries()) {
      const left = Math.min(timeout, Math.max(1, remaining()))
      const isLast = at === hosts.length - 1
      const patience = isLast ? left : Math.min(left, getDefaultAutoSelectFamilyAttemptTimeout())
      try {
        return await ConnectionId.#resolve(endpoint, [host], description, { signal, timeout: patience })
      } catch (failure) {
        if (isLast || signal?.aborted || remaining() <= 0) throw failure
      }
    }
    throw new VerbsError('ENOTFOUND', 'getaddrinfo', description, 'the host has no address')
  }

  static async #resolve(
    { provider, port }: Endpoint,
    [host, ...others]: readonly string[],
    description: string,
    { signal, timeout }: { readonly signal: AbortSignal | undefined; readonly timeout: number },
  ): Promise<ConnectionId> {
    const id = calling(description, () => new ConnectionId(native.createId(provider), provider, description))
    try {
      const event = await id.#do('rdma_resolve_addr', timeout, signal, () => {
        for (const other of others) native.idAddAlternative(id.handle, other, port)
        native.idResolve(id.handle, host as string, port, Math.ceil(timeout))
      })
      if (event.type !== 'route_resolved') throw id.#failure('rdma_resolve_addr', event.status)
      id.#context = calling(description, () => Context.from(native.idContext(id.handle)))
      return id
    } catch (failure) {
      id.close()
      throw failure
    }
  }

  /** @internal the id of a connection request of `peer` @throws VerbsError when it is over */
  static incoming(handle: Handle, provider: ProviderName, peer: NativeAddress): ConnectionId {
    const description = `connection from ${formatUri({ provider, ...peer })}`
    return calling(description, () => {
      // First what a request that is over does not have.
      const context = Context.from(native.idContext(handle))
      const id = new ConnectionId(handle, provider, description)
      id.#context = context
      return id
    })
  }

  /** The device that this connection runs on. */
  get context(): Context {
    if (this.#context === undefined) throw new UsageError(`${this.description} is not resolved`)
    return this.#context
  }

  /** This end: provider, address, port. */
  get localUri(): string {
    return formatUri({ provider: this.provider, ...native.idLocalAddress(this.handle) })
  }

  /** The other end: provider, address, port. */
  get peerUri(): string {
    return formatUri({ provider: this.provider, ...native.idPeerAddress(this.handle) })
  }

  /** Creates the connection's queue pair (rdma_create_qp(3)). Each id has one. */
  createQueuePair(protectionDomain: ProtectionDomain, options: QueuePairOptions): QueuePair {
    if (this.#queuePair !== undefined) throw new UsageError(`${this.description} has a queue pair already`)
    if (protectionDomain.context !== this.context)
      throw new UsageError(
        `the protection domain belongs to ${protectionDomain.context.description}, the connection to ${this.context.description}`,
      )
    this.#queuePair = new QueuePair(this, protectionDomain, options)
    return this.#queuePair
  }

  /**
   * Connects (rdma_connect(3)).
   * @returns the acceptor's private data
   * @throws ConnectionRejectedError when the peer rejects; VerbsError ECONNREFUSED when nothing listens, ETIMEDOUT without
   * an answer; UsageError for a bad option; the signal's reason
   */
  async connect(options: ConnectOptions = {}): Promise<Uint8Array> {
    return await this.#establish('rdma_connect', native.idConnect, options)
  }

  /** Accepts a connection request (rdma_accept(3)); resolves when the connection is established. */
  async accept(options: ConnectOptions = {}): Promise<void> {
    await this.#establish('rdma_accept', native.idAccept, options)
  }

  /** @returns the peer's private data */
  async #establish(
    verb: string,
    call: typeof native.idConnect,
    { timeout, signal, privateData, responderResources = 0, initiatorDepth = 0 }: ConnectOptions,
  ): Promise<Uint8Array> {
    const data = copyOfBytes('privateData', privateData ?? NOTHING)
    const event = await this.#do(verb, timeout, signal, () =>
      call(this.handle, this.#requireQp().handle, data, responderResources, initiatorDepth),
    )
    if (event.type === 'rejected') throw new ConnectionRejectedError(this.description, event.privateData)
    if (event.type !== 'established') throw this.#failure(verb, event.status)
    return event.privateData
  }

  /** Refuses a connection request (rdma_reject(3)) and closes this id. */
  reject(privateData: Uint8Array = new Uint8Array()): void {
    const reason = copyOfBytes('privateData', privateData)
    calling(this.description, () => native.idReject(this.handle, reason))
    this.close()
  }

  /** Ends the connection (rdma_disconnect(3)); both ends see {@link disconnected}. */
  disconnect(): void {
    if (!this.closed && this.#established) calling(this.description, () => native.idDisconnect(this.handle))
  }

  protected holdLoop(holds: boolean): void {
    native.setIdRef(this.handle, holds)
  }

  override close(): void {
    if (this.closed) return
    super.close()
    this.#step?.reject(new VerbsError('ECANCELED', 'rdma_destroy_id', this.description, 'it was closed'))
    this.#disconnected.resolve(undefined)
  }

  #requireQp(): QueuePair {
    if (this.#queuePair === undefined) throw new UsageError(`${this.description} has no queue pair`)
    return this.#queuePair
  }

  async #do(
    verb: string,
    timeout: number | undefined,
    signal: AbortSignal | undefined,
    call: () => void,
  ): Promise<NativeCmEvent> {
    const limit = milliseconds('timeout', timeout ?? DEFAULT_TIMEOUT_MS)
    if (this.#step !== undefined) throw new UsageError(`${this.description} is busy with another step`)
    signal?.throwIfAborted()
    const step = deferred<NativeCmEvent>()
    this.#step = step
    this.waits = true
    try {
      calling(this.description, call)
      return await within(
        step.promise,
        limit,
        () => new VerbsError('ETIMEDOUT', verb, this.description, 'the peer does not answer'),
        signal,
      )
    } finally {
      this.#step = undefined
      this.waits = this.#established
    }
  }

  #on(event: NativeCmEvent): void {
    if (event.type === 'established') this.#established = true
    if (event.type === 'disconnected') {
      this.#established = false
      this.waits = this.#step !== undefined
      this.#disconnected.resolve(event.status === 0 ? undefined : this.#failure('connection', event.status))
      return
    }
    this.#step?.resolve(event)
  }

  #failure(verb: string, status: number): VerbsError {
    return errorOfStatus(status, verb, this.description, (code) => EXPLANATIONS[code] ?? 'it failed')
  }
}

const EXPLANATIONS: Readonly<Record<string, string>> = {
  ENODEV: 'no RDMA device reaches this address; list devices with "rdma link", or use iwarp://',
  ECONNREFUSED: 'nothing listens there',
  ETIMEDOUT: 'the peer does not answer',
  EHOSTUNREACH: 'there is no route to the host',
  ENETUNREACH: 'there is no route to the network',
  ECONNRESET: 'the peer broke the connection',
  EADDRNOTAVAIL: 'no device of this machine has this address',
  EPROTO: 'the peer does not speak the protocol',
  EACCES: 'the other end runs as another user: over shm both must be the same user, or one of them root',
  EPERM:
    'one end has registered memory that is not shared, which the other may not access: use memory of allocateMemoryRegion ' +
    'or allocate, or run both as one user in one PID namespace (process_vm_readv(2), ptrace_scope)',
}
