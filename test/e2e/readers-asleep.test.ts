// Whoever reads what a program prints may stop reading and stay: a pager, a stopped terminal, a hung collector of logs.
// Nobody else may wait for that.
import { spawn } from 'node:child_process'
import { closeSync, constants, openSync, readSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { SwapServerSession } from '@rdmakit/swap-server'
import { expect, it } from 'vitest'
import { must, SWAP_SERVER, startServe, startServer, statusIn, temporaryFolder } from './processes.js'

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

/** More than the kernel and the program keep of what it says meanwhile. */
async function openManySessions(uri: string): Promise<void> {
  for (let round = 0; round < 150; round++) {
    const session = await SwapServerSession.open([uri])
    expect(await session.allocate(4)).toHaveLength(4)
    await session.close()
  }
}

it('nbd-client serves, keeps its sessions and notices a failed server with a log that nobody reads', async () => {
  using folder = temporaryFolder()
  using pipe = new FullPipe(join(folder.path, 'stderr'))
  const options = ['--memory', '16M', '--slab-size', '1M', '--session-timeout', '3']
  const servers = [
    await startServer(options, `shm://${join(folder.path, 'a')}`),
    await startServer(options, `shm://${join(folder.path, 'b')}`),
  ] as const
  await using first = servers[0].program
  await using second = servers[1].program
  const more = ['--server', servers[1].uri, '--replicas', '2', '--metrics', '0']
  const { program, uri } = await startServe(servers[0].uri, '4M', folder.path, more, pipe.end)
  await using client = program
  must('qemu-io', ['-f', 'raw', '-c', 'write -P 7 0 4M', uri])
  await first.stop('SIGKILL')
  const state = () =>
    statusIn<{ servers: { state: string }[] }>(folder.path).servers.map(({ state }) => state)
  await expect.poll(state, { timeout: 10_000 }).toEqual(['failed', 'up'])
  // Twice what the other one waits for a heartbeat.
  await setTimeout(7_000)
  expect(state()).toEqual(['failed', 'up'])
  expect(must('qemu-io', ['-f', 'raw', '-c', 'read -P 7 0 4M', uri])).not.toMatch(/fail/i)
  const said = () => pipe.read()
  await expect.poll(said).toMatch(/^nbd-client: lost shm:.*nothing of the volume is lost/m)
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
  await openManySessions(uri)
  const status = must('env', [
    `RDMAKIT_RUN=${folder.path}`,
    process.execPath,
    SWAP_SERVER,
    'status',
    '--json',
  ])
  expect(JSON.parse(status)).toMatchObject([{ pid: server.process.pid }])
  let text = ''
  const lost = () => {
    text += pipe.read()
    return /"lost":\d+,"msg":"\d+ lines of the log were lost: nobody read it"}\n$/.test(text)
  }
  await expect.poll(lost).toBe(true)
  for (const line of text.trimEnd().split('\n'))
    expect(JSON.parse(line)).toMatchObject({ name: 'swap-server' })
  const session = await SwapServerSession.open([uri])
  await session.close()
  await expect.poll(() => pipe.read()).toMatch(/session-opened/)
  expect(await server.stop()).toMatchObject({ status: 0 })
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
  let server: number | undefined
  try {
    let text = ''
    for await (const part of terminal.stdout) {
      text += part
      if (/listening \S+\s/.test(text)) break
    }
    server = Number(/process (\d+)/.exec(text)?.[1])
    terminal.kill('SIGSTOP')
    await openManySessions(/listening (\S+)/.exec(text)?.[1] as string)
  } finally {
    terminal.kill('SIGKILL')
    // To it the end of its terminal means to read its tenants.
    if (server !== undefined) process.kill(server, 'SIGKILL')
  }
})
