// Programs in two PID namespaces that share the folder of control sockets, as two containers do with a volume: both are the
// process number 1.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { expect, it } from 'vitest'
import {
  endWithProcess,
  PATIENCE_MS,
  Program,
  SWAP_SERVER,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

interface Status {
  pid: number
  listeners: string[]
}

/** A swap-server that is number 1 of a PID namespace. */
async function startInNamespace(folder: string, name: string) {
  const words = ['--listen', `shm://${join(folder, name)}`, '--memory', '8M', '--slab-size', '1M']
  const outer = endWithProcess(
    spawn('unshare', ['--pid', '--fork', '--kill-child', process.execPath, SWAP_SERVER, ...words], {
      env: { ...process.env, RDMAKIT_RUN: folder },
      stdio: ['ignore', 'pipe', 'inherit'],
    }),
  )
  const lines = createInterface({ input: outer.stdout })
  await once(lines, 'line', { signal: AbortSignal.timeout(PATIENCE_MS) })
  return {
    stop: async () => {
      const ended = once(outer, 'exit', { signal: AbortSignal.timeout(PATIENCE_MS) })
      const [server] = readFileSync(`/proc/${outer.pid}/task/${outer.pid}/children`, 'utf8').trim().split(' ')
      process.kill(Number(server), 'SIGTERM')
      await ended
    },
  }
}

it('each of two programs with one number has a control socket of its own, and leaves the other one’s', async () => {
  using folder = temporaryFolder()
  const listed = async () => {
    await using status = new Program(SWAP_SERVER, ['status', '--json'], { RDMAKIT_RUN: folder.path })
    const { status: exit } = await status.ends()
    const list = JSON.parse(status.stdout) as Status[]
    expect(exit).toBe(list.length === 0 ? 69 : 0)
    return list
  }
  const names = (of: Status[]) =>
    of.flatMap(({ listeners }) => listeners.map((uri) => uri.split('/').at(-1))).sort()
  const first = await startInNamespace(folder.path, 'first')
  await until(listed, (of) => of.length === 1)
  const second = await startInNamespace(folder.path, 'second')
  const both = await until(listed, (of) => names(of).includes('second'))
  expect(names(both)).toEqual(['first', 'second'])
  expect(both.map(({ pid }) => pid)).toEqual([1, 1])
  await first.stop()
  expect(names(await listed())).toEqual(['second'])
  await second.stop()
  expect(await listed()).toEqual([])
}, 120_000)

it('a process that has the number of a server in another namespace is not stopped in its place', async () => {
  using folder = temporaryFolder()
  const server = await startInNamespace(folder.path, 'one')
  // The shell is number 1 of a third namespace, as the server is of its own.
  const script = `trap 'echo hit' TERM; '${process.execPath}' '${SWAP_SERVER}' stop & wait $!; echo "status $?"`
  const shell = spawn('unshare', ['--pid', '--fork', '--kill-child', 'sh', '-c', script], {
    env: { ...process.env, RDMAKIT_RUN: folder.path },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  endWithProcess(shell)
  const [out, error] = await Promise.all([text(shell.stdout), text(shell.stderr)])
  expect(error).toContain('swap-server 1 runs in another PID namespace')
  expect(out).toBe('status 64\n')
  await server.stop()
}, 120_000)
