// The reader of a program's output may end before the program: a pipe into tee(1), a terminal. The program continues.
import { join } from 'node:path'
import { SwapServerSession } from '@rdmakit/swap-server'
import { expect, it } from 'vitest'
import {
  complete,
  type Program,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

function leave({ process: { stdout, stderr } }: Program): void {
  stdout?.destroy()
  stderr?.destroy()
}

it('nbd-client serves on when it has to say something', async () => {
  using folder = temporaryFolder()
  const servers = [
    await startServer(['--memory', '16M', '--slab-size', '1M'], `shm://${join(folder.path, 'a')}`),
    await startServer(['--memory', '16M', '--slab-size', '1M'], `shm://${join(folder.path, 'b')}`),
  ] as const
  await using first = servers[0].program
  await using _ = servers[1].program
  const more = ['--server', servers[1].uri, '--replicas', '2', '--connections', '2']
  const { program, uri } = await startServe(servers[0].uri, '4M', folder.path, more)
  await using client = program
  await complete('qemu-io', ['-f', 'raw', '-c', 'write -P 7 0 4M', uri])
  leave(client)
  await first.stop('SIGKILL')
  // It has said by then that a server is lost.
  await until(
    () => statusIn<{ servers: [{ state: string }] }>(folder.path),
    ({ servers: [{ state }] }) => state === 'failed',
  )
  expect(await complete('qemu-io', ['-f', 'raw', '-c', 'read -P 7 0 4M', uri])).not.toMatch(/fail/i)
  expect(await client.stop()).toMatchObject({ status: 0 })
})

it('swap-server lends on, and ends in good order', async () => {
  using folder = temporaryFolder()
  const listen = `shm://${join(folder.path, 'server')}`
  const { program, uri } = await startServer(['--memory', '4M', '--slab-size', '1M'], listen)
  await using server = program
  leave(server)
  for (let round = 0; round < 3; round++) {
    const session = await SwapServerSession.open([uri])
    expect(await session.allocate(4)).toHaveLength(4)
    await session.close()
  }
  expect(await server.stop()).toMatchObject({ status: 0 })
})
