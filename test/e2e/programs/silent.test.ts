// A program that hangs is not left out of what its status command prints without a word.
import { randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { stopProcess } from '../../stop-process.js'
import {
  NBD_CLIENT,
  Program,
  run,
  SWAP_SERVER,
  startServe,
  startServer,
  temporaryFolder,
} from '../helpers/processes.js'

const UNAVAILABLE = 69
const NO_PERMISSION = 77

it('swap-server status shows what can be reached, names what cannot, and watches on', async () => {
  const { program: server, uri } = await startServer(['--memory', '64M'])
  await using _server = server
  const closed = 'iwarp://127.0.0.1:1'
  const { status: code, stdout, stderr } = run(process.execPath, [SWAP_SERVER, 'status', closed, uri])
  expect(stdout).toMatch(new RegExp(`^SERVER .*\n${uri} `))
  expect(stderr).toMatch(new RegExp(`^swap-server: .*${closed}.*nothing listens there.*\n$`))
  expect(code).toBe(UNAVAILABLE)
  await using watch = new Program(SWAP_SERVER, ['status', closed, uri, '--watch', '0.1'])
  await watch.prints(new RegExp(`(SERVER[^]*${closed}[^]*){2}`))
  expect(await watch.stop()).toEqual({ status: 0, signal: null })
})

it('swap-server status --watch ends where the only server refuses, which no later look mends', async () => {
  using folder = temporaryFolder()
  const { program: server, uri } = await startServer(['--memory', '64M'])
  await using _server = server
  const key = join(folder.path, 'key')
  writeFileSync(key, `1:${randomBytes(32).toString('base64')}\n`, { mode: 0o600 })
  const words = ['status', uri, '--tenant', 'nobody', '--key-file', key, '--watch', '0.1']
  const { status: code, stdout, stderr } = run(process.execPath, [SWAP_SERVER, ...words])
  expect(stderr).toMatch(new RegExp(`^swap-server: ${uri}: .*\n$`))
  expect({ code, stdout }).toEqual({ code: NO_PERMISSION, stdout: '' })
})

it.each(['swap-server', 'nbd-client'])('%s status names a process that does not answer', async (name) => {
  using folder = temporaryFolder()
  const { program: server, uri } = await startServer(['--memory', '64M'], undefined, folder.path)
  await using _server = server
  const { program: client } = await startServe(uri, '8M', folder.path)
  await using _client = client
  const [program, hung] = name === 'swap-server' ? [SWAP_SERVER, server] : [NBD_CLIENT, client]
  const status = () =>
    run('env', [`RDMAKIT_RUN=${folder.path}`, process.execPath, program, 'status', '--json'])
  expect(JSON.parse(status().stdout)).toHaveLength(1)
  await stopProcess(hung.process)
  const { status: code, stdout, stderr } = status()
  expect(JSON.parse(stdout)).toEqual([])
  expect(stderr).toContain(`${name}: process ${hung.process.pid} does not answer and is not shown: `)
  expect(code).toBe(UNAVAILABLE)
  await using watch = new Program(program, ['status', '--watch'], { RDMAKIT_RUN: folder.path })
  await watch.prints(new RegExp(`process ${hung.process.pid} does not answer and is not shown: `))
  expect(watch.stdout).not.toContain('is running')
  expect(watch.stderr).toBe('')
  expect(await watch.stop()).toEqual({ status: 0, signal: null })
  hung.process.kill('SIGCONT')
  expect(status().status).toBe(0)
})
