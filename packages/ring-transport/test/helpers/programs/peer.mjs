// The other process of a test: a ring server that does what its first argument says, and tells its
// parent where it listens and what it saw. Second argument: options as JSON.

import { readSync } from 'node:fs'
import { Poller } from '@rdmakit/ring-transport'
import { listDevices, openDevice } from '@rdmakit/verbs'
import { serve, tell } from './serve.mjs'

const [role, json] = process.argv.slice(2)
const { mode, uri = 'iwarp://127.0.0.1:0', ...options } = JSON.parse(json ?? '{}')
const device = listDevices().find(({ provider }) => uri.startsWith(provider))
if (mode !== undefined) options.poller = new Poller(openDevice(device.name, device.provider), { mode })

const roles = {
  /** answers with what it was asked; sends back every message */
  echo(connection) {
    connection.handle((request) => request.copy())
    const queue = []
    let running = false
    connection.messages.subscribe(async (message) => {
      queue.push(message.copy())
      if (running) return
      running = true
      try {
        for (let next = queue.shift(); next !== undefined; next = queue.shift())
          while (!connection.send(next)) await connection.writable()
      } catch {
        // The connection has ended, and closed says so.
      }
      running = false
    })
  },
  /** never answers, and tells that it was asked; takes no messages */
  silent(connection) {
    connection.handle(() => {
      tell({ asked: true })
      return new Promise(() => {})
    })
  },
  /** counts and checks numbered messages, slowly */
  slow(connection) {
    let count = 0
    let sum = 0
    const held = []
    connection.handle(() => new TextEncoder().encode(JSON.stringify({ count, sum })))
    connection.views.subscribe((message) => {
      const number = new DataView(message.data.buffer, message.data.byteOffset).getUint32(0)
      if (number !== count) tell({ wrong: `message ${number} came for ${count}` })
      count++
      sum += message.length
      held.push(message.retain())
      setTimeout(
        () => {
          for (const one of held.splice(0)) one.release()
        },
        held.length < 8 ? 20 : 2,
      )
    })
  },
  /** dies in the middle of a request */
  dies(connection) {
    connection.handle(() => process.kill(process.pid, 'SIGKILL'))
  },
  /** asks 100,000 times when it gets a message, and waits for no answer before the next */
  asks(connection) {
    connection.messages.subscribe(() => {
      for (let i = 0; i < 100_000; i++)
        connection.request(new Uint8Array(16), { timeout: 600_000 }).catch(() => {})
    })
  },
  /** its JavaScript stands still from a message on, until a byte comes to its stdin */
  blocks(connection) {
    connection.messages.subscribe(() => void readSync(0, new Uint8Array(1)))
  },
  /** says which session and epoch connects; answers with its process id, or never when asked for nothing */
  epochs(connection) {
    tell({ session: connection.session?.id, epoch: connection.session?.epoch })
    connection.handle((request) =>
      request.length === 0 ? new Promise(() => {}) : new TextEncoder().encode(String(process.pid)),
    )
    connection.send(new TextEncoder().encode(`epoch ${connection.session?.epoch}`))
  },
  /** says ten numbers before it is asked */
  counts(connection) {
    for (let i = 0; i < 10; i++) connection.send(new Uint8Array(8), i)
    connection.flush()
  },
  /** connections are open when it exits by itself */
  exits(connection) {
    connection.messages.subscribe(() => process.exit(7))
  },
}

await serve(uri, options, roles[role])
