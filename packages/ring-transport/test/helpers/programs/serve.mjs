import { RingServer } from '@rdmakit/ring-transport'

/** Tells the parent of this process. */
export const tell = (message) => process.send?.(message)

/** Serves connections by `role` until the parent says anything, and tells it where, and how each ends. */
export async function serve(uri, options, role) {
  const server = await RingServer.listen(uri, {
    ...options,
    onConnection(connection) {
      role(connection)
      connection.closed.then((reason) => tell({ closed: reason?.code ?? 'in order' }))
    },
  })
  tell({ uri: server.uri })
  process.on('message', () => server.close({ drain: false }).then(() => process.disconnect()))
}
