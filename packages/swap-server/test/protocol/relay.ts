import { acceptRing, RingConnection } from '@rdmakit/ring-transport'
import { Listener } from '@rdmakit/verbs'
import { control } from '../../src/protocol/messages.js'

/** A man in the middle between clients and a server: the messages it has seen, and its address. */
export interface Relay {
  readonly uri: string
  /** of the server, in their order */
  readonly responses: readonly control.Response[]
  close(): Promise<void>
}

/**
 * Listens at `address`, and has a connection of its own to the server at `upstream` for each client. It passes on all
 * that the two say, both ways.
 * @param change what it makes of a request before
 */
export async function relay(
  address: string,
  upstream: string,
  change: (request: control.Request) => void = () => {},
): Promise<Relay> {
  const connections: RingConnection[] = []
  const responses: control.Response[] = []
  const listener = await Listener.listen(address, async (asked) => {
    const server = await RingConnection.connect(upstream)
    connections.push(server)
    const client = await acceptRing(asked)
    connections.push(client)
    client.handle(async (bytes) => {
      const request = control.Request.decode(bytes.data)
      change(request)
      const response = await server.request(control.Request.encode(request).finish())
      responses.push(control.Response.decode(response))
      return response
    })
    server.handle((bytes) => client.request(bytes.data))
    void server.closed.then(() => client.close())
    void client.closed.then(() => server.close())
  })
  return {
    uri: listener.uri,
    responses,
    close: async () => {
      listener.close()
      await Promise.all(connections.map((connection) => connection.close({ drain: false })))
    },
  }
}
