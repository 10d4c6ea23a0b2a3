import { onTestFinished } from 'vitest'
import { type ConnectOptions, RingConnection, RingServer, type RingServerOptions } from '../../src/index.js'
import { HANG_MS } from './processes.js'
import { listenUri, PROVIDERS as NAMES } from './uris.js'

/** Each provider that runs everywhere, and where a test listens on it. */
export const PROVIDERS = NAMES.map((name) => [name, () => listenUri(name)] as const)

export interface Pair extends AsyncDisposable {
  /** the end that connected */
  readonly a: RingConnection
  /** the end that accepted */
  readonly b: RingConnection
  readonly server: RingServer
}

/** Both ends of one connection, in this process. Disposing breaks it. */
export async function pair(
  uri: string,
  server: Partial<RingServerOptions> = {},
  client: ConnectOptions = {},
): Promise<Pair> {
  let accepted!: (connection: RingConnection) => void
  const arrived = new Promise<RingConnection>((resolve) => {
    accepted = resolve
  })
  const timeout = HANG_MS
  const listening = await RingServer.listen(uri, { timeout, onConnection: accepted, ...server })
  try {
    const a = await RingConnection.connect(listening.uri, { timeout, ...client })
    const b = await arrived
    return {
      a,
      b,
      server: listening,
      async [Symbol.asyncDispose]() {
        await a.close({ drain: false })
        await listening.close({ drain: false })
      },
    }
  } catch (failure) {
    await listening.close({ drain: false })
    throw failure
  }
}

/** A pair that is broken when the test is over. */
export async function pairOfTest(...options: Parameters<typeof pair>): Promise<Pair> {
  const made = await pair(...options)
  onTestFinished(() => made[Symbol.asyncDispose]())
  return made
}
