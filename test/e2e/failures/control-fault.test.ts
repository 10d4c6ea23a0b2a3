// A failure in control code that nothing catches, in each of the two programs, while pages are there that only it has.
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type ControlFault, controlFault } from '../../control-fault.js'
import {
  complete,
  NBD_CLIENT,
  Program,
  run,
  SWAP_SERVER,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

interface Impaired {
  impaired?: { reason: string; failures: number }
}

const SERVER = ['--memory', '32M', '--slab-size', '4M']
const write = (uri: string, byte: number) =>
  complete('qemu-io', ['-f', 'raw', '-c', `write -P ${byte} 0 8M`, uri])
const holds = async (uri: string, byte: number) =>
  expect(await complete('qemu-io', ['-f', 'raw', '-c', `read -P ${byte} 0 8M`, uri])).not.toMatch(/fail/i)

/** An nbd-client that serves a volume of 8 MiB, with a fault in wait. */
async function startClient(server: string, folder: string, fault: ControlFault, state: boolean) {
  const program = new Program(
    NBD_CLIENT,
    [
      ...['serve', '--server', server, '--size', '8M', '--unix', join(folder, 'nbd.sock')],
      ...['--connections', '2', ...(state ? ['--state', join(folder, 'state')] : [])],
    ],
    { RDMAKIT_RUN: folder, ...controlFault(fault) },
  )
  const [, uri] = await program.prints(/^ready (\S+)$/m)
  return { program, uri: uri as string }
}

describe.concurrent.each<[ControlFault, string]>([
  ['timer', 'a timer has failed'],
  ['rejection', 'a promise has failed'],
  ['growth', 'the heap is nearly full'],
])('nbd-client, of a %s', (fault, reason) => {
  it('with state says so with the stack, ends with 70, and the next process goes on', async () => {
    using folder = temporaryFolder()
    const server = await startServer(SERVER, undefined, join(folder.path, 'server'))
    await using _server = server.program
    const first = await startClient(server.uri, folder.path, fault, true)
    await write(first.uri, 0x5a)
    expect(await first.program.stop('SIGUSR2')).toEqual({ status: 70, signal: null })
    expect(first.program.stderr).toMatch(/the process ends, and the next one takes over from its state/)
    expect(first.program.stderr).toMatch(new RegExp(`Error: ${reason}.*\\n +at `))
    const second = await startClient(server.uri, folder.path, fault, true)
    await using _second = second.program
    await holds(second.uri, 0x5a)
  })

  it('without state serves on, tells the status, and ends in good order', async () => {
    using folder = temporaryFolder()
    const server = await startServer(SERVER, undefined, join(folder.path, 'server'))
    await using _server = server.program
    const { program, uri } = await startClient(server.uri, folder.path, fault, false)
    await using _program = program
    await write(uri, 0x5a)
    program.process.kill('SIGUSR2')
    const { impaired } = await until(
      () => statusIn<Impaired>(folder.path),
      (status) => status.impaired !== undefined,
    )
    expect(impaired?.reason).toContain(reason)
    await holds(uri, 0x5a)
    await write(uri, 0x77)
    await holds(uri, 0x77)
    const told = run('env', [`RDMAKIT_RUN=${folder.path}`, process.execPath, NBD_CLIENT, 'status'])
    expect(told.stdout).toMatch(new RegExp(`: its control code has failed, first at .*: ${reason}`))
    expect(await program.stop()).toEqual({ status: 0, signal: null })
  })

  it('while it has no pages yet ends it', async () => {
    using folder = temporaryFolder()
    // It takes the connection and never answers.
    const silent = createServer().listen(0, '127.0.0.1')
    try {
      await once(silent, 'listening')
      const { port } = silent.address() as AddressInfo
      const called = once(silent, 'connection')
      await using program = new Program(
        NBD_CLIENT,
        [
          ...['serve', '--server', `iwarp://127.0.0.1:${port}`, '--size', '8M'],
          ...['--unix', join(folder.path, 'nbd.sock')],
        ],
        { RDMAKIT_RUN: folder.path, ...controlFault(fault) },
      )
      await called
      expect(await program.stop('SIGUSR2')).toEqual({ status: 70, signal: null })
      expect(program.stderr).toContain('control code has failed; the process ends')
    } finally {
      silent.close()
    }
  })
})

it.concurrent('nbd-client with state whose heap is full is gone, and the next process goes on', async () => {
  using folder = temporaryFolder()
  const server = await startServer(SERVER, undefined, join(folder.path, 'server'))
  await using _server = server.program
  const first = await startClient(server.uri, folder.path, 'heap', true)
  await write(first.uri, 0x5a)
  expect(await first.program.stop('SIGUSR2')).toEqual({ status: null, signal: 'SIGABRT' })
  const second = await startClient(server.uri, folder.path, 'timer', true)
  await using _second = second.program
  await holds(second.uri, 0x5a)
})

describe.concurrent.each<[ControlFault, string]>([
  ['timer', 'a timer has failed'],
  ['rejection', 'a promise has failed'],
  ['growth', 'the heap is nearly full'],
])('swap-server, of a %s', (fault, reason) => {
  it('keeps the memory of its clients, takes them up again, opens no new session and says so', async () => {
    using folder = temporaryFolder()
    const run = join(folder.path, 'server')
    await using server = new Program(SWAP_SERVER, ['--listen', 'iwarp://127.0.0.1:0', ...SERVER], {
      RDMAKIT_RUN: run,
      ...controlFault(fault),
    })
    const [, uri] = await server.prints(/^listening (\S+)$/m)
    const first = await startClient(uri as string, folder.path, 'timer', true)
    await write(first.uri, 0x5a)
    server.process.kill('SIGUSR2')
    const { impaired } = await until(
      () => statusIn<Impaired>(run, 'swap-server'),
      (status) => status.impaired !== undefined,
    )
    expect(impaired).toMatchObject({ reason: expect.stringContaining(reason), failures: 1 })
    expect(server.stderr).toMatch(new RegExp(`"stack":"Error: ${reason}.*\\\\n +at `))
    await holds(first.uri, 0x5a)
    await write(first.uri, 0x77)
    // Its client dies and comes back: Resume.
    await first.program.stop('SIGKILL')
    const second = await startClient(uri as string, folder.path, 'timer', true)
    await using _second = second.program
    await holds(second.uri, 0x77)
    // A new one.
    using other = temporaryFolder()
    await using refused = new Program(
      NBD_CLIENT,
      ['serve', '--server', uri as string, '--size', '8M', '--unix', join(other.path, 'nbd.sock')],
      { RDMAKIT_RUN: other.path },
    )
    expect((await refused.ends()).status).toBe(69)
    expect(refused.stderr).toContain(`opens no new sessions: its control code has failed`)
    await holds(second.uri, 0x77)
  })
})
