// Each signal that ends a process by default, sent to a program that others have their memory in.
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import {
  NBD_CLIENT,
  Program,
  SWAP_SERVER,
  startServe,
  startServer,
  temporaryFolder,
} from '../helpers/processes.js'

const MEANINGLESS = [
  ...(['SIGALRM', 'SIGUSR1', 'SIGUSR2', 'SIGVTALRM'] as const),
  ...(['SIGPROF', 'SIGIO', 'SIGPWR', 'SIGSTKFLT'] as const),
]
/** What Node.js ignores for itself. */
const IGNORED = ['SIGPIPE', 'SIGXFSZ'] as const

/** It goes on, and says so: after what it ignores comes one that it tells of. */
async function outlives(program: Program): Promise<void> {
  for (const signal of IGNORED) program.process.kill(signal)
  for (const signal of MEANINGLESS) {
    program.process.kill(signal)
    // Node.js has two names for one number.
    await program.says(signal === 'SIGIO' ? /SIG(IO|POLL) is ignored/ : new RegExp(`${signal} is ignored`))
  }
  // SIGUSR1 is Node.js's own, for a debugger.
  expect(program.stderr).not.toContain('Debugger listening')
}

it.each(['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT', 'SIGXCPU'] as const)(
  'nbd-client ends in good order at %s, as of a terminal that was closed, and goes on at any other',
  async (signal) => {
    using folder = temporaryFolder()
    const server = await startServer(['--memory', '16M', '--slab-size', '1M'])
    await using _ = server.program
    const { program } = await startServe(server.uri, '8M', folder.path)
    await using __ = program
    if (signal === 'SIGTERM') await outlives(program)
    expect(await program.stop(signal)).toEqual({ status: 0, signal: null })
  },
)

it.each(['SIGTERM', 'SIGINT', 'SIGQUIT', 'SIGXCPU'] as const)(
  'swap-server ends in good order at %s, and goes on at any other',
  async (signal) => {
    const { program } = await startServer(['--memory', '16M', '--slab-size', '1M'])
    await using _ = program
    if (signal === 'SIGTERM') {
      program.process.kill('SIGHUP')
      await outlives(program)
    }
    expect(await program.stop(signal)).toEqual({ status: 0, signal: null })
    expect(program.stdout).toMatch(new RegExp(`^stopped by ${signal}$`, 'm'))
  },
)

/** Node.js listens for SIGUSR1, which it does before the program has begun. */
async function listensForDebugger({ process: { pid } }: Program): Promise<void> {
  for (;;) {
    const caught = /^SigCgt:\s*(\w+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? '0'
    if (BigInt(`0x${caught}`) & (1n << 9n)) return
    await new Promise(setImmediate)
  }
}

const isRefused = (port: number) =>
  new Promise<boolean>((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(false))
    socket.on('connect', () => socket.destroy()).on('error', () => resolve(true))
  })

/** Starts it until the signal comes before the program can handle it: on a machine that is busy it may be late. */
async function startedUnderSignal(script: string, args: readonly string[], ready: RegExp): Promise<void> {
  for (;;) {
    using folder = temporaryFolder()
    const env = { RDMAKIT_RUN: folder.path, NODE_OPTIONS: '--inspect-port=0' }
    await using program = new Program(
      script,
      args.map((each) => each.replace('FOLDER', folder.path)),
      env,
    )
    await listensForDebugger(program)
    program.process.kill('SIGUSR1')
    await program.prints(ready)
    if (program.stderr.includes('SIGUSR1 is ignored')) continue
    await program.says(/SIGUSR1 opened a debugger while this process started; it is closed/)
    const [, port] = await program.says(/Debugger listening on ws:\/\/127\.0\.0\.1:(\d+)/)
    expect(await isRefused(Number(port))).toBe(true)
    expect(await program.stop()).toEqual({ status: 0, signal: null })
    return
  }
}

it('a SIGUSR1 while swap-server starts leaves no debugger open', async () => {
  const address = `shm://${join('FOLDER', 'server.sock')}`
  await startedUnderSignal(
    SWAP_SERVER,
    ['--listen', address, '--memory', '8M', '--slab-size', '1M'],
    /^listening/m,
  )
})

it('a SIGUSR1 while nbd-client starts leaves no debugger open', async () => {
  const server = await startServer(['--memory', '16M', '--slab-size', '1M'])
  await using _ = server.program
  const args = ['serve', '--server', server.uri, '--size', '8M', '--unix', join('FOLDER', 'nbd.sock')]
  await startedUnderSignal(NBD_CLIENT, args, /^ready/m)
})
