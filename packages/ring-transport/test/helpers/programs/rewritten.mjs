// The process whose ring a peer rewrites while it reads: see rewritten.ts. First argument: how it reads; second: options
// as JSON. It tells where it listens, and then what it has read.
import { serve, tell } from './serve.mjs'

const [role, json] = process.argv.slice(2)
const { uri, length, torn: wanted, deadlineMs } = JSON.parse(json)

/** Reads until the peer has written under it often enough. */
function read(message) {
  const deadline = performance.now() + deadlineMs
  let texts = 0
  let torn = 0
  while (torn < wanted && performance.now() < deadline) {
    // Each of the two texts that the peer writes has a length of its own.
    const characters = message.text().length
    texts++
    if (characters !== length && characters !== length / 2) torn++
  }
  tell({ texts, torn })
}

const roles = {
  text(connection) {
    connection.views.subscribe(read)
  },
  /** a request */
  request(connection) {
    connection.handleViews((request) => {
      read(request)
      return new Uint8Array()
    })
  },
  view(connection) {
    const poll = () => {
      if (connection.isOpen && connection.drain(read) === 0) setImmediate(poll)
    }
    poll()
  },
}

await serve(uri, {}, roles[role])
