// examples/service: a protobuf service, its server and its client in processes of their own.
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { top } from '../../lab/base/paths.js'
import { PATIENCE_MS, Program, run, temporaryFolder } from '../helpers/processes.js'

const SERVER = join(top, 'examples/dist/service/server.js')
const CLIENT = join(top, 'examples/dist/service/client.js')

it.each(['iwarp', 'shm'] as const)('a greeter over %s greets, counts and refuses', async (scheme) => {
  using folder = temporaryFolder()
  const at = scheme === 'shm' ? `shm://${join(folder.path, 'greeter.sock')}` : 'iwarp://127.0.0.1:0'
  await using server = new Program(SERVER, [at])
  const [, uri] = await server.prints(/^listening (\S+)$/m)
  const call = (...names: string[]) => run(process.execPath, [CLIENT, uri as string, ...names], PATIENCE_MS)
  const greeted = 'Hello, Ann!\ngreeted so far: 1\nHello, Bob!\ngreeted so far: 2\n'
  expect(call('Ann', 'Bob')).toMatchObject({ status: 0, stdout: greeted, stderr: '' })
  // The count of greetings is the server's, over all clients.
  const refused = 'the server refused: EINVAL whom to greet?\nHello, Eve!\ngreeted so far: 3\n'
  expect(call('', 'Eve')).toMatchObject({ status: 0, stdout: refused, stderr: '' })
  expect(await server.stop()).toMatchObject({ status: 0 })
})
