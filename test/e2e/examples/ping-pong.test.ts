// examples/ping-pong: two processes that poll.
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { effort } from '../../effort.js'
import { top } from '../../lab/base/paths.js'
import { Program, run, temporaryFolder } from '../helpers/processes.js'

const SERVER = join(top, 'examples/dist/ping-pong/server.js')
const CLIENT = join(top, 'examples/dist/ping-pong/client.js')
// Where others want the processors, each may wait for the end of both processes' time slices.
const ROUNDS = effort(100)

it.each([
  ['iwarp', 64],
  ['shm', 64],
  ['shm', 100_000],
] as const)(
  `ping-pong over %s times ${ROUNDS} messages of %i bytes and prints their histogram`,
  async (scheme, bytes) => {
    using folder = temporaryFolder()
    const at = scheme === 'shm' ? `shm://${join(folder.path, 'ping.sock')}` : 'iwarp://127.0.0.1:0'
    await using server = new Program(SERVER, [at])
    const [, uri] = await server.prints(/^listening (\S+)$/m)
    const { status, stdout, stderr } = run(
      process.execPath,
      [CLIENT, uri as string, String(ROUNDS), String(bytes)],
      60_000,
    )
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(stdout).toMatch(new RegExp(`^${ROUNDS} round trips of ${bytes} bytes over ${scheme}://`))
    const shares = [...stdout.matchAll(/^< *[\d.]+ µs +([\d.]+) %/gm)].map(([, share]) => Number(share))
    expect(shares.reduce((sum, share) => sum + share, 0)).toBeCloseTo(100, 0)
    expect(stdout.match(/^p50 +[\d.]+ µs$/m)).not.toBeNull()
    expect(await server.stop()).toMatchObject({ status: 0 })
  },
)
