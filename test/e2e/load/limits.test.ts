// What a program is told that has as many threads as its user may have, or no memory left: an error of the call, with
// what to raise, and the same call works once there is room. A real limit of threads, of a user who has no other process.
import { execFile, execFileSync, fork } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { SwapServerSession } from '@rdmakit/swap-server'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startServer, temporaryFolder, until } from '../helpers/processes.js'

interface Told {
  /** how many threads its user may have */
  readonly threads?: number
  readonly tried?: Readonly<Record<string, unknown>>
}

/** Who limited.mjs is then. */
const USER = 61_234

/** What limited.mjs has tried, once it has ended in order. */
function run(part: string, environment = {}): Promise<Readonly<Record<string, unknown>>> {
  const program = fileURLToPath(new URL('../helpers/limited.mjs', import.meta.url))
  const env = { ...process.env, ...environment }
  const child = fork(program, [part, `${USER}`], { env, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  return new Promise((resolve, reject) => {
    let tried: Told['tried']
    child.on('message', (told: Told) => {
      tried = told.tried
      if (told.threads === undefined) return
      // As its user: a container's root may not change the limits of others.
      const user = { uid: USER, gid: USER }
      execFile('prlimit', ['--pid', `${child.pid}`, `--nproc=${told.threads}:`], user, (error) =>
        error === null ? child.send('set') : reject(error),
      )
    })
    child.on('exit', (status, signal) =>
      tried === undefined ? reject(new Error(`it ended with ${status ?? signal}`)) : resolve(tried),
    )
  })
}

describe('at a limit', () => {
  it('a thread that cannot be started is EAGAIN, with what to raise, and no end', async () => {
    const none = expect.objectContaining({
      code: 'EAGAIN',
      message: expect.stringMatching(/ulimit -u.*pids\.max.*threads-max/),
    })
    expect(await run('threads')).toEqual({
      'none: the device of iwarp': none,
      'none: the device of shm': none,
      'none: a listener': none,
      'none: an engine': none,
      'enough: the device of iwarp': 'fine',
      'enough: the device of shm': 'fine',
      'enough: a listener': 'fine',
      'enough: an engine': 'fine',
      'none: a lane': none,
      'none: a poller': none,
      'none: a completion channel': none,
      'none: a region that is closed': 'fine',
      'enough: a lane': 'fine',
      'enough: a poller': 'fine',
      'enough: a completion channel': 'fine',
    })
  })

  it('each thread of an engine with a backup may be the one that cannot be started', async () => {
    const none = (of: string) =>
      expect.objectContaining({
        code: 'EAGAIN',
        message: expect.stringMatching(`^open: ${of}no more threads`),
      })
    expect(await run('threadByThread')).toEqual({
      'with 0 more': none('backup: '),
      'left after 0': 0,
      'with 1 more': none(''),
      'left after 1': 0,
      'with 2 more': 'fine',
      'left after 2': 0,
    })
  })

  it('memory that cannot be had is ENOMEM, and no end', async () => {
    const none = expect.objectContaining({ code: 'ENOMEM' })
    using folder = temporaryFolder()
    const library = join(folder.path, 'scarce-memory.so')
    const source = fileURLToPath(new URL('../helpers/scarce-memory.c', import.meta.url))
    execFileSync('cc', ['-shared', '-fPIC', '-O1', '-o', library, source])
    expect(await run('memory', { LD_PRELOAD: library })).toEqual({
      'none: slots': none,
      'none: a completion queue': none,
      'none: a poller': none,
      'enough: slots': 'fine',
      'enough: a completion queue': 'fine',
      'enough: a poller': 'fine',
      'more memory than any process may have': none,
    })
  })

  it.each(['iwarp', 'shm'])(
    'a server that has no descriptor left says so, and goes on, over %s',
    async (over) => {
      using folder = temporaryFolder()
      const path = join(folder.path, 'server.sock')
      const { program, uri } = await startServer(
        ['--memory', '16M', '--slab-size', '1M'],
        over === 'shm' ? `shm://${path}` : 'iwarp://127.0.0.1:0',
        { RDMAKIT_RUN: folder.path },
      )
      await using _server = program
      const descriptors = (soft: string) =>
        execFileSync('prlimit', ['--pid', `${program.process.pid}`, `--nofile=${soft}`])
      // What is open stays open.
      descriptors('3:')
      const early = SwapServerSession.open([uri]).catch(() => undefined)
      const said = await until(
        () => program.stderr.split('\n').find((line) => line.includes('connections wait')),
        (line) => line !== undefined,
      )
      expect(said).toMatch(/no descriptor is left.*ulimit -n.*LimitNOFILE=.*EMFILE/)
      descriptors('1024:')
      // On a slow machine the first may have given up before there was a descriptor for it.
      const session = (await early) ?? (await SwapServerSession.open([uri]))
      expect(await session.query()).toMatchObject({ sessions: 1 })
      await session.close()
    },
  )
})
