// examples/parameter-server over each transport: two workers, whose weights are checked to the last bit.
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { top } from '../lab/paths.js'
import { Program, run, temporaryFolder } from './processes.js'

const SERVER = join(top, 'examples/dist/parameter-server/server.js')
const WORKER = join(top, 'examples/dist/parameter-server/worker.js')

it.each([
  ['the ring over shm', (folder: string) => `shm://${folder}/shm.sock`],
  ['the ring over iwarp', () => 'iwarp://127.0.0.1:0'],
  ['zeromq', (folder: string) => `zeromq+ipc://${folder}/zeromq.ipc`],
  ['net', () => 'tcp://127.0.0.1:0'],
  ['a Unix socket', (folder: string) => `unix://${folder}/unix.sock`],
] as const)(
  'sums the gradients of ResNet-50 rightly over %s',
  async (_, at) => {
    using folder = temporaryFolder()
    await using server = new Program(SERVER, [at(folder.path), '2'])
    const [, uri] = await server.prints(/^listening (\S+)$/m)
    const { status, stdout, stderr } = run(process.execPath, [WORKER, uri as string, '2', '3'], 60_000)
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(stdout).toMatch(/^all 25557032 weights are what 3 iterations of 2 workers make them$/m)
    expect(await server.ends()).toMatchObject({ status: 0 })
    expect(server.stdout).toMatch(/^3 iterations$/m)
  },
  90_000,
)
