// examples/service: a protobuf service, its server and its client in processes of their own.
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { top } from '../lab/paths.js'
import { Program, run, temporaryFolder } from './processes.js'

const SERVER = join(top, 'examples/dist/service/server.js')
const CLIENT = join(top, 'examples/dist/service/client.js')

it.each(['iwarp', 'shm'] as const)('a greeter over %s greets, counts and refuses', async (scheme) => {
  using folder = temporaryFolder()
  const at = scheme === 'shm' ? `shm://${join(folder.path, 'greeter.sock')}` : 'iwarp://127.0.0.1:0'
  await using server = new Program(SERVER, [at])
  const [, uri] = await server.prints(/^listening (\S+)$/m)
  const call = (name: string) => run(process.execPath, [CLIENT, uri as string, name], 30_000)
  expect(call('Ann')).toMatchObject({ status: 0, stdout: 'Hello, Ann!\ngreeted so far: 1\n', stderr: '' })
  expect(call('Bob')).toMatchObject({ status: 0, stdout: 'Hello, Bob!\ngreeted so far: 2\n', stderr: '' })
  expect(call('')).toMatchObject({ status: 0, stdout: 'the server refused: EINVAL whom to greet?\n' })
  expect(await server.stop()).toMatchObject({ status: 0 })
})
