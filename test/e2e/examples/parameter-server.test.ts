// examples/parameter-server over each transport: two workers, whose weights are checked to the last bit.
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { effort } from '../../effort.js'
import { top } from '../../lab/base/paths.js'
import { PATIENCE_MS, Program, temporaryFolder } from '../helpers/processes.js'

const SERVER = join(top, 'examples/dist/parameter-server/server.js')
const WORKER = join(top, 'examples/dist/parameter-server/worker.js')
/** The first ones of ResNet-50: 8 MB, twice what a ring holds. npm run soak takes most of them. */
const PARAMETERS = Math.min(25_557_032, effort(2_000_000))
const ENVIRONMENT = { RDMAKIT_PARAMETERS: String(PARAMETERS) }

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
    await using server = new Program(SERVER, [at(folder.path), '2'], ENVIRONMENT)
    const [, uri] = await server.prints(/^listening (\S+)$/m)
    const worker = new Program(WORKER, [uri as string, '2', '3'], ENVIRONMENT)
    const { status } = await worker.ends()
    const { stdout, stderr } = worker
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(stdout).toContain(`all ${PARAMETERS} weights are what 3 iterations of 2 workers make them\n`)
    expect(await server.ends()).toMatchObject({ status: 0 })
    expect(server.stdout).toMatch(/^3 iterations$/m)
  },
  3 * PATIENCE_MS,
)
