// Each signal that ends a process by default, sent to a program that others have their memory in.
import { expect, it } from 'vitest'
import { type Program, startServe, startServer, temporaryFolder } from './processes.js'

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
    await program.says(
      signal === 'SIGIO' ? /SIG(IO|POLL) means nothing here/ : new RegExp(`${signal} means nothing here`),
    )
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
