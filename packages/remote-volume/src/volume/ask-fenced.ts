import type { FencedError } from '../servers/fenced-error.js'
import { askFenced } from '../servers/resume-session.js'
import type { VolumeServer } from '../servers/volume-server.js'
import { type RaisedOptions, sessionOptions } from './volume-options.js'

/** How long a failed server is asked whether another process has the volume. */
const ASK_FENCED_MS = 5_000

/** Asks each of these for its session, which it is left with. */
export async function askWhetherFenced(
  servers: readonly VolumeServer[],
  options: RaisedOptions,
): Promise<FencedError | undefined> {
  if (options.takeOver.number === 0) return undefined
  const reached = servers.filter((server) => server.reached)
  // One that came back has its session under several indexes.
  const sessions = new Map(reached.map((server) => [server.identity?.session, server]))
  const asking = [...sessions.values()].map(
    ({ uris, identity }) => identity && askFenced(uris, identity, sessionOptions(options), ASK_FENCED_MS),
  )
  return (await Promise.all(asking)).find((fenced) => fenced !== undefined)
}
