// A swap-server that is asked for its memory while clients verify what they wrote.
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { must, NBD_CLIENT, Program, run, SWAP_SERVER, startServer, temporaryFolder } from './processes.js'

const MIB = 2 ** 20

async function startIn(folder: string) {
  const args = ['--memory', '256M', '--slab-size', '16M']
  const { program, uri } = await startServer(args, undefined, folder)
  return { program, uri, pid: program.process.pid as number }
}

/** bytes of memory that a process has */
function resident(pid: number): number {
  const kilobytes = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  return Number(kilobytes) * 1024
}

const reclaim = (folder: string, ...args: string[]) =>
  run('env', [`RDMAKIT_RUN=${folder}`, process.execPath, SWAP_SERVER, 'reclaim', ...args])

describe('swap-server reclaim', () => {
  it('gets the memory back to the system while a client verifies what it wrote', async () => {
    using folder = temporaryFolder()
    const servers = [await startIn(folder.path), await startIn(folder.path)]
    await using _first = (servers[0] as { program: Program }).program
    await using _second = (servers[1] as { program: Program }).program
    await using client = new Program(
      NBD_CLIENT,
      [
        'serve',
        ...servers.flatMap(({ uri }) => ['--server', uri]),
        ...['--size', '128M', '--unix', join(folder.path, 'nbd.sock'), '--refill-rate', '0'],
      ],
      { RDMAKIT_RUN: folder.path },
    )
    const [, uri] = await client.prints(/^ready (\S+)$/m)
    must('qemu-io', ['-f', 'raw', '-c', 'write -P 0x5a 0 128M', uri as string])
    const child = spawn(
      'fio',
      [
        ...['--name=v', '--ioengine=nbd', `--uri=${uri}`, '--rw=randwrite', '--bs=4k', '--iodepth=8'],
        ...['--size=64m', '--time_based', '--runtime=6', '--verify=crc32c', '--verify_fatal=1'],
        ...['--verify_backlog=256', '--verify_state_save=0', '--status-interval=1'],
      ],
      { stdio: ['ignore', 'pipe', 'pipe'] },
    )
    let output = ''
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (text) => {
        output += text
      })
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
    await new Promise<void>((resolve) => child.stdout.once('data', () => resolve()))
    const { pid } = servers.toSorted((a, b) => resident(b.pid) - resident(a.pid))[0] as { pid: number }
    const before = resident(pid)
    const { status, stdout, stderr } = reclaim(folder.path, '48M', '--pid', String(pid), '--wait', '60')
    expect(status, stdout + stderr).toBe(0)
    expect(stdout).toBe('48 MiB of 48 MiB are back\n')
    expect(before - resident(pid)).toBeGreaterThan(44 * MIB)
    expect(await ended, output).toBe(0)
    must('qemu-io', ['-f', 'raw', '-c', 'read -P 0x5a 64M 64M', uri as string])
    expect(client.stderr).toMatch(/needs its memory back: moving \d+ MiB to other servers/)
    const asked = must('env', [
      `RDMAKIT_RUN=${folder.path}`,
      process.execPath,
      NBD_CLIENT,
      'status',
      '--json',
    ])
    expect(JSON.parse(asked)[0].migration).toEqual({ waiting: 0, moved: 3 })
  }, 90_000)

  it('says what is still out, and lends again when it is told to', async () => {
    using folder = temporaryFolder()
    const server = await startIn(folder.path)
    await using _server = server.program
    await using client = new Program(
      NBD_CLIENT,
      ['serve', '--server', server.uri, '--size', '64M', '--unix', join(folder.path, 'nbd.sock')],
      { RDMAKIT_RUN: folder.path },
    )
    await client.prints(/^ready/m)
    const { status, stdout } = reclaim(folder.path, '32M', '--wait', '1')
    expect(stdout).toBe(
      '0 bytes of 32 MiB are back; 32 MiB are still out, of which 0 bytes are being moved\n',
    )
    expect(status).toBe(1)
    expect(reclaim(folder.path, '0').stdout).toBe('all memory is lent again\n')
  }, 60_000)

  it.each([
    ['without a server', ['1M'], /no swap-server is running/],
    ['of no size', ['much'], /the size "much" is not a size/],
    ['of another process', ['1M', '--pid', '1'], /no swap-server has process id 1/],
  ])('refuses %s', (_, args, message) => {
    using folder = temporaryFolder()
    const { status, stderr } = reclaim(folder.path, ...args)
    expect(stderr).toMatch(message)
    expect(status).not.toBe(0)
  })

  it('needs a headroom that is one', () => {
    const { status, stderr } = run(process.execPath, [
      ...[SWAP_SERVER, '--listen', 'iwarp://127.0.0.1:0', '--memory', '16M', '--headroom', '99%'],
    ])
    expect(stderr).toMatch(/--headroom "99%" leaves nothing to lend/)
    expect(status).not.toBe(0)
  })
})
