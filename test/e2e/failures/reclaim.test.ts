// A swap-server that is asked for its memory while clients verify what they wrote.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { VerifyingFio } from '../helpers/fio.js'
import {
  complete,
  Program,
  SWAP_SERVER,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

const MIB = 2 ** 20

async function startIn(folder: string) {
  const args = ['--memory', '128M', '--slab-size', '8M']
  const { program, uri } = await startServer(args, undefined, folder)
  return { program, uri, pid: program.process.pid as number }
}

/** bytes of memory that a process has */
function resident(pid: number): number {
  const kilobytes = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  return Number(kilobytes) * 1024
}

/** Runs swap-server to its end. */
async function swapServer(folder: string, ...args: string[]) {
  await using program = new Program(SWAP_SERVER, args, { RDMAKIT_RUN: folder })
  const { status } = await program.ends()
  return { status, stdout: program.stdout, stderr: program.stderr }
}

const reclaim = (folder: string, ...args: string[]) => swapServer(folder, 'reclaim', ...args)

interface Status {
  migration: { waiting: number; moved: number }
  statistics: { lanes: { writes: number }[] }
}

describe('swap-server reclaim', () => {
  it('gets the memory back to the system while a client verifies what it wrote', async () => {
    using folder = temporaryFolder()
    const servers = [await startIn(folder.path), await startIn(folder.path)] as const
    await using _first = servers[0].program
    await using _second = servers[1].program
    const args = ['--server', servers[1].uri, '--refill-rate', '0', '--connections', '2']
    const { program: client, uri } = await startServe(servers[0].uri, '64M', folder.path, args)
    await using _client = client
    await complete('qemu-io', ['-f', 'raw', '-c', 'write -P 0x5a 0 64M', uri])
    const written = async () => {
      const { statistics } = await statusIn<Status>(folder.path)
      return statistics.lanes.reduce((sum, { writes }) => sum + writes, 0)
    }
    const moreWritten = async () => {
      const before = await written()
      await until(written, (pages) => pages > before + 1000)
    }
    await using fio = new VerifyingFio(uri, '32m')
    await moreWritten()
    const { pid } = servers.toSorted((a, b) => resident(b.pid) - resident(a.pid))[0] as { pid: number }
    const before = resident(pid)
    const { status, stdout, stderr } = await reclaim(
      folder.path,
      ...['24M', '--pid', String(pid), '--wait', '600'],
    )
    expect(status, stdout + stderr).toBe(0)
    expect(stdout).toBe('24 MiB of 24 MiB are back\n')
    expect(before - resident(pid)).toBeGreaterThan(20 * MIB)
    await moreWritten()
    await fio.end()
    await complete('qemu-io', ['-f', 'raw', '-c', 'read -P 0x5a 32M 32M', uri])
    await client.says(/needs its memory back: moving \d+ MiB to other servers/)
    expect((await statusIn<Status>(folder.path)).migration).toEqual({ waiting: 0, moved: 3 })
  })

  it('says what is still out, and lends again when it is told to', async () => {
    using folder = temporaryFolder()
    const server = await startIn(folder.path)
    await using _server = server.program
    const { program: client } = await startServe(server.uri, '16M', folder.path, ['--connections', '2'])
    await using _client = client
    const { status, stdout } = await reclaim(folder.path, '8M', '--wait', '1')
    expect(stdout).toBe('0 bytes of 8 MiB are back; 8 MiB are still lent, of which 0 bytes are being moved\n')
    expect(status).toBe(1)
    expect((await reclaim(folder.path, '0')).stdout).toBe('all memory is lent again\n')
    const all = await reclaim(folder.path, 'all', '--wait', '0')
    expect(all.stdout).toMatch(/^0 bytes of 16 MiB are back; /)
    expect(all.status).toBe(1)
    await client.stop()
    expect(await reclaim(folder.path, 'all')).toMatchObject({
      status: 0,
      stdout: 'nothing was lent, and nothing is meanwhile\n',
    })
  })

  it.each([
    ['without a server', ['1M'], /no swap-server is running/],
    ['of no size', ['much'], /<size> "much" is not a size/],
    ['of another process', ['1M', '--pid', '1'], /--pid 1: no swap-server has this process id/],
  ])('refuses %s', async (_, args, message) => {
    using folder = temporaryFolder()
    const { status, stderr } = await reclaim(folder.path, ...args)
    expect(stderr).toMatch(message)
    expect(status).not.toBe(0)
  })

  it('needs a headroom that is one', async () => {
    using folder = temporaryFolder()
    const { status, stderr } = await swapServer(
      folder.path,
      ...['--listen', 'iwarp://127.0.0.1:0', '--memory', '16M', '--headroom', '99%'],
    )
    expect(stderr).toMatch(/--headroom "99%" leaves nothing to lend/)
    expect(status).not.toBe(0)
  })
})
