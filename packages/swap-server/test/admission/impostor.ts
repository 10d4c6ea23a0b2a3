import { acceptRing, type RingConnection } from '@rdmakit/ring-transport'
import { Listener } from '@rdmakit/verbs'
import { control } from '../../src/protocol/messages.js'

/** A server that says what a test makes it say. */
export interface Impostor {
  readonly uri: string
  close(): Promise<void>
}

/** Listens at `address` and answers each request with what `answer` gives: a response, or any bytes. */
export async function impostor(
  address: string,
  answer: (
    request: control.Request,
    connection: RingConnection,
    bytes: Uint8Array,
  ) => control.Response.$Properties | Uint8Array,
): Promise<Impostor> {
  const connections: { close(): Promise<void> }[] = []
  const listener = await Listener.listen(address, async (request) => {
    const connection = await acceptRing(request)
    connections.push(connection)
    connection.handle((received) => {
      const bytes = received.data
      const given = answer(control.Request.decode(bytes), connection, bytes)
      return given instanceof Uint8Array ? given : control.Response.encode(given).finish()
    })
  })
  return {
    uri: listener.uri,
    close: async () => {
      for (const connection of connections) await connection.close()
      listener.close()
    },
  }
}
