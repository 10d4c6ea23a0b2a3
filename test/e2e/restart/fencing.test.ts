// Two copies of one state folder, against two servers: exactly one process serves, and nothing is lost by the other one.
// docs/page-service/fencing.md
import { cpSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { complete, NBD_CLIENT, Program, startServer, temporaryFolder } from '../helpers/processes.js'

const FENCED = 79
const SIZE = 8 * 2 ** 20

const lend = () => Promise.all([0, 1].map(() => startServer(['--memory', '16M', '--slab-size', '2M'])))

/** An export of the state folder in `folder`, which has its socket there too. */
function start(folder: string, servers: readonly string[], replicas: number): Program {
  mkdirSync(folder, { recursive: true })
  const uris = servers.flatMap((uri) => ['--server', uri])
  const place = ['--size', String(SIZE), '--replicas', String(replicas), '--connections', '2']
  const paths = ['--unix', join(folder, 'nbd.sock'), '--state', join(folder, 'state')]
  return new Program(NBD_CLIENT, ['serve', ...uris, ...place, ...paths], { RDMAKIT_RUN: folder })
}

const ready = async (program: Program) => (await program.prints(/^ready (\S+)$/m))[1] as string

const copy = (from: string, to: string) => {
  mkdirSync(to, { recursive: true })
  cpSync(join(from, 'state'), join(to, 'state'), { recursive: true })
}

const fill = (uri: string, byte: number) =>
  complete('qemu-io', ['-f', 'raw', '-c', `write -P ${byte} 0 ${SIZE}`, uri])

async function holds(uri: string, byte: number): Promise<void> {
  const output = await complete('qemu-io', ['-f', 'raw', '-c', `read -P ${byte} 0 ${SIZE}`, uri])
  expect(output).not.toMatch(/fail|error/i)
}

it.concurrent.each([1, 2])(
  'the one that comes to a volume that is served has it then, with %i replicas',
  async (replicas) => {
    using folder = temporaryFolder()
    const [first, second] = [join(folder.path, 'first'), join(folder.path, 'second')]
    const servers = await lend()
    const uris = servers.map(({ uri }) => uri)
    try {
      await using old = start(first, uris, replicas)
      await fill(await ready(old), 1)
      copy(first, second)
      await using taker = start(second, uris, replicas)
      const uri = await ready(taker)
      expect(await old.ends()).toMatchObject({ status: FENCED })
      expect(old.stderr).toMatch(/another process has taken the volume over: .*; this process stops/)
      // Nor does the end of that one take anything with it.
      await holds(uri, 1)
      await fill(uri, 2)
      await holds(uri, 2)
      expect(await taker.stop()).toMatchObject({ status: 0 })
      // Nothing was called back or given away behind it.
      await using next = start(second, uris, replicas)
      await holds(await ready(next), 2)
      expect(next.stderr).not.toMatch(/lost|replica less/)
      await next.stop()
    } finally {
      for (const { program } of servers) await program.stop()
    }
  },
)

it.concurrent.each([1, 2])(
  'of two that start at the same time one serves, with %i replicas',
  async (replicas) => {
    using folder = temporaryFolder()
    const places = ['first', 'second', 'third'].map((name) => join(folder.path, name))
    const [first, ...others] = places as [string, string, string]
    const servers = await lend()
    const uris = servers.map(({ uri }) => uri)
    try {
      const begun = start(first, uris, replicas)
      await fill(await ready(begun), 1)
      await begun.stop('SIGKILL')
      for (const other of others) copy(first, other)
      await using one = start(others[0] as string, uris, replicas)
      await using two = start(others[1] as string, [...uris].reverse(), replicas)
      // By their instances, which are random.
      const loser = await Promise.race([one, two].map((each) => each.ends().then(() => each)))
      expect(await loser.ends()).toMatchObject({ status: FENCED })
      const winner = loser === one ? two : one
      const uri = await ready(winner)
      await holds(uri, 1)
      await fill(uri, 2)
      await holds(uri, 2)
      expect(winner.process.exitCode).toBeNull()
      expect(await winner.stop()).toMatchObject({ status: 0 })
    } finally {
      for (const { program } of servers) await program.stop()
    }
  },
)
