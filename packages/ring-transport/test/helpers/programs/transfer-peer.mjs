// The other process of a test of large messages: a ring server that does what its first argument says, and
// tells its parent what it saw. Second argument: options as JSON, and `uri` where it listens.
import { readFileSync } from 'node:fs'
import { serve, tell } from './serve.mjs'

const [role, json] = process.argv.slice(2)
const { uri, ...options } = JSON.parse(json)
/** KiB of the process's own memory: what it maps of others is theirs */
const anonymous = () => Number(/RssAnon:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'latin1'))[1])

const roles = {
  /** reads what it is offered chunk by chunk, and checks that each MiB begins with its number */
  chunks(connection) {
    connection.offers.subscribe(async (offer) => {
      let position = 0
      let wrong = 0
      let most = 0
      const before = anonymous()
      for await (const chunk of offer.chunks({ chunkSize: 2 ** 20 })) {
        const fields = new DataView(chunk.buffer, chunk.byteOffset, chunk.byteLength)
        if (fields.getUint32(0) !== position / 2 ** 20) wrong++
        position += chunk.length
        if (position % 2 ** 26 === 0) most = Math.max(most, anonymous())
      }
      tell({ position, wrong, grown: most - before })
    })
  },
  /** is offered messages and does nothing */
  waits(connection) {
    connection.offers.subscribe(() => tell({ offered: true }))
  },
  /** is killed when it has read some of a message */
  dies(connection) {
    connection.offers.subscribe((offer) => {
      void offer.accept({ onProgress: () => process.kill(process.pid, 'SIGKILL') })
    })
  },
  /** takes messages as they come */
  messages(connection) {
    connection.messages.subscribe(({ length }) => tell({ length }))
  },
  /** offers much, as soon as it is asked to */
  transmits(connection) {
    connection.handle(() => {
      const failed = ({ code }) => tell({ failed: code })
      connection.transmit(new Uint8Array(2 ** 26)).then(() => tell({ sent: true }), failed)
      return new Uint8Array()
    })
  },
}

await serve(uri, options, roles[role])
