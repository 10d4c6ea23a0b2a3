import { copyOfBytes } from '../base/arguments.js'
import { CallbackScope } from '../base/callback-scope.js'
import { callApart, calling, errorOfStatus, VerbsError } from '../base/errors.js'
import { HoldingResource } from '../base/holding-resource.js'
import { type Handle, type NativeAddress, native, type ProviderName } from '../native.js'
import { addressesOf } from './addresses.js'
import { ConnectionId, type WaitOptions } from './connection-id.js'
import { formatUri, parseUri } from './uri.js'

/**
 * A peer's connection request. Either continue with `id` (`createQueuePair`, `accept`) or {@link reject} it; a request
 * that is left alone ends by its peer's timeout. Anyone may send requests, and rejecting one for its private data should
 * cost nothing more, so the id is created only when it is accessed.
 */
export class ConnectionRequest {
  /** what the peer passed to connect, a copy; padded with zeros to 56 bytes by InfiniBand and RoCE */
  readonly privateData: Uint8Array
  readonly #handle: Handle
  readonly #provider: ProviderName
  readonly #peer: NativeAddress
  #id: ConnectionId | undefined
  #over = false

  /** @internal */
  constructor(handle: Handle, provider: ProviderName, privateData: Uint8Array) {
    this.#handle = handle
    this.#provider = provider
    this.privateData = privateData
    this.#peer = native.idPeerAddress(handle)
  }

  /** the acceptor's end @throws VerbsError ENODEV when the request is over by now */
  get id(): ConnectionId {
    if (this.#id === undefined && this.#over)
      throw new VerbsError('ENODEV', 'rdma_get_cm_event', `request of ${this.peerUri}`, 'it is over')
    this.#id ??= ConnectionId.incoming(this.#handle, this.#provider, this.#peer)
    return this.#id
  }

  /** The other end: provider, address, port. Available even after the request has ended. */
  get peerUri(): string {
    return formatUri({ provider: this.#provider, ...this.#peer })
  }

  /**
   * Refuses the request (rdma_reject(3)) and closes its id. If the request has already ended, its id is only closed.
   * @param privateData for the peer, at most 148 bytes on InfiniBand and RoCE
   */
  reject(privateData: Uint8Array = new Uint8Array()): void {
    if (this.#over || this.#id?.closed === true) return
    const reason = copyOfBytes('privateData', privateData)
    this.#over = true
    try {
      native.idReject(this.#handle, reason)
    } catch {
      // The peer has gone, or has been answered.
    }
    this.#close()
  }

  /** @internal what is made of it has failed */
  abandon(): void {
    if (!this.#over) this.#close()
  }

  #close(): void {
    this.#over = true
    if (this.#id === undefined) native.close(this.#handle)
    else this.#id.close()
  }
}

/** What {@link Listener.listen} takes. */
export interface ListenOptions extends WaitOptions {
  /** connections that the kernel keeps for a listener that is busy, default 1024 (listen(2)) */
  readonly backlog?: number | undefined
  /**
   * Called with the error that `onRequest` has thrown, after the connection was closed for it. Without it a
   * {@link VerbsError} is ignored, because peers may disappear while they are answered, and anything else becomes an
   * `uncaughtException`, because it is a fault of the program.
   */
  readonly onError?: ((failure: unknown) => void) | undefined
  /**
   * Called when a connection must wait, because the process or the machine lacks a descriptor or memory for it: EMFILE,
   * ENFILE, ENOBUFS or ENOMEM (accept(2)). The listener tries again every 100 ms, and calls each time that it fails. Not on
   * `rdma://`, where a request takes no descriptor.
   */
  readonly onStalled?: ((failure: VerbsError) => void) | undefined
}

/** Receives connection requests at an address (rdma_listen(3)). It keeps the event loop alive until it is closed. */
export class Listener extends HoldingResource {
  /** where it listens, with the port resolved */
  readonly uri: string
  readonly description: string

  private constructor(handle: Handle, uri: string) {
    super(handle, [])
    this.uri = uri
    this.description = `listener ${uri}`
    this.waits = true
  }

  protected holdLoop(holds: boolean): void {
    native.setIdRef(this.handle, holds)
  }

  /**
   * Listens at `uri`, for a name at its first address; port 0 takes any free one.
   * @param onRequest called for each request, in the context (AsyncLocalStorage) in which the listener was created; if
   * it throws, that connection is closed and `onError` gets the error
   * @throws UsageError for a bad URI or timeout; VerbsError EADDRINUSE, EADDRNOTAVAIL, ENOTFOUND and ETIMEDOUT of a name, or
   *   ENODEV when this machine has no RDMA device for `rdma://`; the signal's reason
   */
  static async listen(
    uri: string,
    onRequest: (request: ConnectionRequest) => void | Promise<void>,
    { backlog = 1024, onError = passOver, onStalled, signal, timeout = 5_000 }: ListenOptions = {},
  ): Promise<Listener> {
    const endpoint = parseUri(uri)
    const { provider } = endpoint
    const description = `listener ${uri}`
    const [host = endpoint.host] = await addressesOf(endpoint.host, description, { signal, timeout })
    const handle = calling(description, () => native.createId(provider))
    let listener: Listener | undefined
    try {
      const scope = new CallbackScope('Listener')
      native.setIdSink(
        handle,
        scope.wrap((event) => {
          // What had come by the time of close() is on its way still.
          if (listener?.closed) {
            if (event.request !== undefined) native.close(event.request)
          } else if (event.type === 'connect_request' && event.request !== undefined)
            void receive(event.request, provider, event.privateData, onRequest, onError)
          else if (event.type === 'accept_stalled')
            onStalled?.(errorOfStatus(event.status, 'accept4', description, stalled))
        }),
      )
      calling(description, () => native.idListen(handle, host, endpoint.port, backlog))
      const { port } = native.idLocalAddress(handle)
      listener = new Listener(handle, formatUri({ provider, host: endpoint.host, port }))
      return listener
    } catch (failure) {
      native.close(handle)
      if (failure instanceof VerbsError && failure.code === 'ENODEV')
        throw new VerbsError(
          'ENODEV',
          failure.verb,
          description,
          'no RDMA device has this address; list devices with "rdma link", or use iwarp://',
        )
      throw failure
    }
  }
}

async function receive(
  handle: Handle,
  provider: ProviderName,
  privateData: Uint8Array,
  onRequest: (request: ConnectionRequest) => void | Promise<void>,
  onError: (failure: unknown) => void,
): Promise<void> {
  const request = new ConnectionRequest(handle, provider, privateData)
  try {
    await onRequest(request)
  } catch (failure) {
    request.abandon()
    // What it throws itself has nobody else to go to.
    callApart(() => onError(failure))
  }
}

function stalled(code: string): string {
  if (code === 'EMFILE')
    return 'connections wait, because no descriptor is left for them; raise "ulimit -n", or LimitNOFILE= of its unit'
  return `connections wait, because the machine has no ${code === 'ENFILE' ? 'descriptor' : 'memory'} left for them`
}

function passOver(failure: unknown): void {
  if (!(failure instanceof VerbsError)) throw failure
}
