// The reader of a program's output may stop reading and stay: a pager, a stopped terminal, a hung log collector. No
// client may wait for that.
import { spawn } from 'node:child_process'
import { closeSync, constants, openSync, readSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { SwapServerSession } from '@rdmakit/swap-server'
import { expect, it, onTestFinished, vi } from 'vitest'
import { ForeignProcess } from '../../foreign-process.js'
import { stopProcess } from '../../stop-process.js'
import {
  complete,
  must,
  PATIENCE_MS,
  SWAP_SERVER,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

const PATIENT = { timeout: PATIENCE_MS }

/** A pipe in which nothing has room. */
class FullPipe implements Disposable {
  /** for the program */
  readonly end: number
  readonly #ours: number

  constructor(path: string) {
    must('mkfifo', [path])
    this.#ours = openSync(path, constants.O_RDWR | constants.O_NONBLOCK)
    this.end = openSync(path, constants.O_WRONLY)
    this.#until(() => writeSync(this.#ours, '.'.repeat(4096)))
  }

  /** What is in it, and no dot. */
  read(): string {
    const part = Buffer.alloc(65_536)
    let text = ''
    this.#until(() => {
      text += part.toString('utf8', 0, readSync(this.#ours, part))
    })
    return text.replace(/^\.+/, '')
  }

  #until(full: () => void): void {
    for (;;) {
      try {
        full()
      } catch (failure) {
        if ((failure as NodeJS.ErrnoException).code === 'EAGAIN') return
        throw failure
      }
    }
  }

  [Symbol.dispose](): void {
    closeSync(this.#ours)
    closeSync(this.end)
  }
}

/** Makes a swap-server say more than the kernel and the program keep, which is 64 KiB each: 400 bytes a round. */
async function keepBusy(uri: string): Promise<void> {
  const session = await SwapServerSession.open([uri])
  for (let round = 0; round < 250; round++) {
    const slabs = await session.allocate(1)
    expect(slabs).toHaveLength(1)
    await session.free(slabs)
  }
  await session.close()
}

it('nbd-client serves, keeps its sessions and notices a failed server with a log that nobody reads', async () => {
  using folder = temporaryFolder()
  using pipe = new FullPipe(join(folder.path, 'stderr'))
  const options = ['--memory', '16M', '--slab-size', '1M', '--session-timeout', '3']
  const servers = [
    await startServer(options, `shm://${join(folder.path, 'a')}`),
    await startServer(options, `shm://${join(folder.path, 'b')}`, folder.path),
  ] as const
  await using first = servers[0].program
  await using second = servers[1].program
  const more = ['--server', servers[1].uri, '--replicas', '2', '--connections', '2']
  const { program, uri } = await startServe(servers[0].uri, '4M', folder.path, more, pipe.end)
  await using client = program
  await complete('qemu-io', ['-f', 'raw', '-c', 'write -P 7 0 4M', uri])
  await first.stop('SIGKILL')
  const states = async () =>
    (await statusIn<{ servers: { state: string }[] }>(folder.path)).servers.map(({ state }) => state)
  await until(states, ([failed, up]) => failed === 'failed' && up === 'up')
  // By now it has said that. Who stood still since would not be heard of by the other one.
  const requests = async () =>
    (await statusIn<{ controlRequests: number }>(folder.path, 'swap-server')).controlRequests
  const before = await requests()
  await until(requests, (count) => count >= before + 3)
  expect(await states()).toEqual(['failed', 'up'])
  expect(await complete('qemu-io', ['-f', 'raw', '-c', 'read -P 7 0 4M', uri])).not.toMatch(/fail/i)
  const said = () => pipe.read()
  await expect.poll(said, PATIENT).toMatch(/^nbd-client: lost shm:.*nothing of the volume is lost/m)
  expect(await client.stop()).toMatchObject({ status: 0 })
  expect(await second.stop()).toMatchObject({ status: 0 })
})

it('swap-server lends with a log that nobody reads, and says what of it was lost', async () => {
  using folder = temporaryFolder()
  using pipe = new FullPipe(join(folder.path, 'stderr'))
  const options = ['--memory', '4M', '--slab-size', '1M', '--log-level', 'info']
  const listen = `shm://${join(folder.path, 'server')}`
  const { program, uri } = await startServer(options, listen, folder.path, pipe.end)
  await using server = program
  await keepBusy(uri)
  expect(await statusIn(folder.path, 'swap-server')).toMatchObject({ pid: server.process.pid })
  let text = ''
  const lost = () => {
    text += pipe.read()
    return /"lost":\d+,"msg":"\d+ lines of the log were lost: they were not read in time"}\n$/.test(text)
  }
  await expect.poll(lost, PATIENT).toBe(true)
  for (const line of text.trimEnd().split('\n'))
    expect(JSON.parse(line)).toMatchObject({ name: 'swap-server' })
  const session = await SwapServerSession.open([uri])
  await session.close()
  await expect.poll(() => pipe.read(), PATIENT).toMatch(/session-opened/)
  expect(await server.stop()).toMatchObject({ status: 0 })
})

it('swap-server and nbd-client tell warnings of Node.js as all else, by which logs are read line by line', async () => {
  using folder = temporaryFolder()
  const preload = join(folder.path, 'warns.cjs')
  writeFileSync(preload, "process.on('SIGUSR2', () => process.emitWarning('a test warns'))")
  vi.stubEnv('NODE_OPTIONS', `--require ${preload}`)
  onTestFinished(() => void vi.unstubAllEnvs())
  const options = ['--memory', '4M', '--slab-size', '1M']
  const { program, uri } = await startServer(options, `shm://${join(folder.path, 'server')}`, folder.path)
  await using server = program
  await using client = (await startServe(uri, '1M', folder.path)).program
  server.process.kill('SIGUSR2')
  client.process.kill('SIGUSR2')
  await server.says(/^{.*"msg":"a test warns"}$/m)
  await client.says(/^nbd-client: Warning: a test warns$/m)
  expect(server.stderr + client.stderr).not.toMatch(/^\(node:/m)
})

it('swap-server lends on a terminal that was stopped', async () => {
  using folder = temporaryFolder()
  const listen = `shm://${join(folder.path, 'server')}`
  const words = [
    SWAP_SERVER,
    '--listen',
    listen,
    '--memory',
    '4M',
    '--slab-size',
    '1M',
    '--log-level',
    'info',
  ]
  const command = [process.execPath, ...words].map((word) => `'${word}'`).join(' ')
  const terminal = spawn('script', ['-qfec', `echo process $$; exec ${command}`, '/dev/null'], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, RDMAKIT_RUN: folder.path },
  })
  let server: ForeignProcess | undefined
  try {
    let text = ''
    for await (const part of terminal.stdout) {
      text += part
      if (/listening \S+\s/.test(text)) break
    }
    server = new ForeignProcess(Number(/process (\d+)/.exec(text)?.[1]))
    await stopProcess(terminal)
    await keepBusy(/listening (\S+)/.exec(text)?.[1] as string)
  } finally {
    terminal.kill('SIGKILL')
    // To it the end of its terminal means to read its tenants.
    server?.kill()
  }
})
