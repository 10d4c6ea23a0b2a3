import { ConnectionId, resolveHost } from './connection-id.js'
import { calling, VerbsError } from './errors.js'
import { type Handle, native, type ProviderName } from './native.js'
import { Resource } from './resource.js'
import { formatUri, parseUri } from './uri.js'

/**
 * A peer that asks for a connection. Either go on with `id` (`createQueuePair`, `accept`) or
 * `id.reject()`; an id that is left alone is closed by its peer's timeout.
 */
export interface ConnectionRequest {
  /** the acceptor's end */
  readonly id: ConnectionId
  /** what the peer passed to connect; padded with zeros to 56 bytes by InfiniBand and RoCE */
  readonly privateData: Uint8Array
}

/** What {@link Listener.listen} takes. */
export interface ListenOptions {
  /** connections that the kernel keeps for a listener that is busy, default 1024 (listen(2)) */
  readonly backlog?: number
}

/** Takes connection requests at an address (rdma_listen(3)). */
export class Listener extends Resource {
  /** where it listens, with the port resolved */
  readonly uri: string
  readonly description: string

  private constructor(handle: Handle, uri: string) {
    super(handle, [])
    this.uri = uri
    this.description = `listener ${uri}`
  }

  /**
   * Listens at `uri`; port 0 takes any free one.
   * @param onRequest called for each request; what it throws closes that connection only
   * @throws UsageError for a bad URI; VerbsError EADDRINUSE, EADDRNOTAVAIL, or ENODEV when this
   *   machine has no RDMA device for `rdma://`
   */
  static async listen(
    uri: string,
    onRequest: (request: ConnectionRequest) => void | Promise<void>,
    { backlog = 1024 }: ListenOptions = {},
  ): Promise<Listener> {
    const endpoint = parseUri(uri)
    const { provider } = endpoint
    const description = `listener ${uri}`
    const host = await resolveHost(endpoint.host, description)
    const handle = calling(description, () => native.createId(provider))
    try {
      native.setIdSink(handle, (event) => {
        if (event.type === 'connect_request' && event.request !== undefined)
          void receive(event.request, provider, event.privateData, onRequest)
      })
      calling(description, () => native.idListen(handle, host, endpoint.port, backlog))
      const { port } = native.idLocalAddress(handle)
      return new Listener(handle, formatUri({ provider, host: endpoint.host, port }))
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
): Promise<void> {
  let id: ConnectionId | undefined
  try {
    id = ConnectionId.incoming(handle, provider)
    await onRequest({ id, privateData })
  } catch {
    if (id === undefined) native.close(handle)
    else id.close()
  }
}
