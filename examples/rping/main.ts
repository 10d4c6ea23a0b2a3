// The RDMA connection manager's own ping, with the messages of librdmacm's rping: either end may be that.
// node examples/dist/rping/main.js -s | -c [-a uri] [-C count] [-S size] [-V] [-v] [-P]
import { Command, InvalidArgumentError } from 'commander'
import { ping } from './client.js'
import { MOST_BYTES } from './peer.js'
import { pong } from './server.js'

/** Room for the text that every ping begins with, whatever its number, and the final zero byte. */
const LEAST_BYTES = 26

interface Options {
  server: boolean
  client: boolean
  address: string
  count: number
  size?: number
  verify: boolean
  verbose: boolean
  persistent: boolean
}

const program = new Command('rping')
  .description("Pings with RDMA READ and WRITE, as librdmacm's rping(1) does.")
  .option('-s, --server', 'wait for a client', false)
  .option('-c, --client', 'connect and ping', false)
  .option('-a, --address <uri>', 'rdma://host:port, iwarp://host:port, shm:///path', 'iwarp://127.0.0.1:7174')
  .option('-C, --count <pings>', 'pings of the client, 0: without end', whole(0, 2 ** 31 - 1), 0)
  .option(
    '-S, --size <bytes>',
    `client: bytes of a ping (64); server: bytes at most (${MOST_BYTES})`,
    whole(LEAST_BYTES, MOST_BYTES),
  )
  .option('-V, --verify', 'client: compare what comes back', false)
  .option('-v, --verbose', 'print what is pinged', false)
  .option('-P, --persistent', 'server: any number of clients, until SIGINT or SIGTERM', false)

function whole(least: number, most: number): (text: string) => number {
  return (text) => {
    const number = Number(text)
    if (!/^\d+$/.test(text) || number < least || number > most)
      throw new InvalidArgumentError(`It is a whole number from ${least} to ${most}.`)
    return number
  }
}

async function main(): Promise<void> {
  const { server, client, address, size, ...options } = program.parse().opts<Options>()
  if (server === client) program.error('error: either -s or -c: this end is the server or the client')
  if (client) return await ping(address, { ...options, size: size ?? 64 })
  const stop = new AbortController()
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => stop.abort())
  await pong(address, { ...options, size: size ?? MOST_BYTES, signal: stop.signal })
}

try {
  await main()
} catch (failure) {
  console.error(`rping: ${failure instanceof Error ? failure.message : String(failure)}`)
  process.exitCode = 1
}
