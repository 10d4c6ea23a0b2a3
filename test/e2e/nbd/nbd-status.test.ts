// nbd-client status, as an operator reads it and as scripts do.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  complete,
  must,
  NBD_CLIENT,
  Program,
  startServe,
  startServer,
  temporaryFolder,
} from '../helpers/processes.js'

const MIB = 2 ** 20

/** A volume of 8 MiB in two replicas on two servers, with its files and socket in `folder`. */
async function startVolume(folder: string) {
  const servers = await Promise.all(
    ['a', 'b'].map((name) =>
      startServer(['--memory', '16M', '--slab-size', '1M'], `shm://${join(folder, name)}`),
    ),
  )
  const client = await startServe(servers[0]?.uri as string, '8M', folder, [
    ...['--server', servers[1]?.uri as string, '--replicas', '2', '--connections', '4'],
  ])
  return {
    client: client.program,
    uri: client.uri,
    servers: servers.map(({ program }) => program),
    uris: servers.map(({ uri }) => uri),
    [Symbol.asyncDispose]: async () => {
      for (const program of [client.program, ...servers.map((server) => server.program)])
        await program[Symbol.asyncDispose]()
    },
  }
}

/** Runs nbd-client status to its end. */
async function status(folder: string, ...args: string[]) {
  await using program = new Program(NBD_CLIENT, ['status', ...args], { RDMAKIT_RUN: folder })
  const end = await program.ends()
  return { ...end, stdout: program.stdout, stderr: program.stderr }
}

function copy(folder: string, uri: string, bytes: number): void {
  const image = join(folder, 'image')
  writeFileSync(image, Buffer.alloc(bytes, 'page'))
  must('nbdcopy', ['--request-size=65536', image, uri])
}

it('says so when nothing runs', async () => {
  using folder = temporaryFolder()
  expect(await status(folder.path)).toMatchObject({ status: 69, stdout: 'no nbd-client is running\n' })
  expect(await status(folder.path, '--json')).toMatchObject({ status: 69, stdout: '[]\n' })
})

it('shows whether pages are compressed, and what that spared', async () => {
  using folder = temporaryFolder()
  const server = await startServer(['--memory', '16M', '--slab-size', '1M'])
  const client = await startServe(server.uri, '8M', folder.path, ['--compress', 'lz4-always'])
  try {
    expect((await status(folder.path)).stdout).toMatch(/ on +8 mapped$/m)
    copy(folder.path, client.uri, 8 * MIB)
    expect((await status(folder.path)).stdout).toMatch(/ on, 7\.\d MiB saved +8 mapped$/m)
    expect(must('nbdinfo', [client.uri])).toMatch(/block_size_minimum: 4096/)
    const back = join(folder.path, 'back')
    must('nbdcopy', [client.uri, back])
    expect(readFileSync(back).equals(readFileSync(join(folder.path, 'image')))).toBe(true)
  } finally {
    await client.program.stop()
    await server.program.stop()
  }
})

describe('of a volume with two replicas, 8 MiB of which were written', () => {
  const folder = temporaryFolder()
  let volume: Awaited<ReturnType<typeof startVolume>>

  beforeAll(async () => {
    volume = await startVolume(folder.path)
    copy(folder.path, volume.uri, 8 * MIB)
  })

  afterAll(async () => {
    await volume?.[Symbol.asyncDispose]()
    folder[Symbol.dispose]()
  })

  it('shows volumes, requests and servers in tables', async () => {
    const { stdout, stderr } = await status(folder.path)
    expect(stderr).toBe('')
    const [volumes, requests, servers] = stdout.split('\n\n')
    expect(volumes).toMatch(
      /^TARGET +PID +MODE +SIZE +HOLDS +LOST +ERRORS +IN FLIGHT +UP +BACKUP +LZ4 +SLABS$/m,
    )
    expect(volumes).toMatch(
      new RegExp(
        ` ${volume.client.process.pid} +serve +8 MiB +8 MiB +0 bytes +0 +0 +\\d+ s +- +- +8 mapped$`,
        'm',
      ),
    )
    expect(requests).toMatch(/^REQUESTS +COUNT +DATA +MEDIAN +99% +99\.9%$/m)
    expect(requests).toMatch(/^write +128 +8 MiB +[\d.]+ [µm]?s +[\d.]+ [µm]?s +[\d.]+ [µm]?s$/m)
    expect(requests).toMatch(/^read +0 +0 bytes$/m)
    expect(servers).toMatch(/^SERVER +SLABS +SPARES +READ +WRITTEN +STATE$/m)
    for (const uri of volume.uris)
      expect(servers).toMatch(new RegExp(`^${uri} +8 +1 +0 bytes +8 MiB +up$`, 'm'))
    expect(stdout).not.toContain('\x1b')
  })

  it('--watch tells what has passed since the last look', async () => {
    await using watch = new Program(NBD_CLIENT, ['status', '--watch', '0.2'], { RDMAKIT_RUN: folder.path })
    await watch.prints(/^write +128 +8 MiB /m)
    await watch.prints(/^write +0\/s +0 bytes\/s$/m)
    await complete('nbdcopy', ['--request-size=65536', join(folder.path, 'image'), volume.uri])
    await watch.prints(/^write +[1-9]\d*\/s +[\d.]+ [KMG]iB\/s +[\d.]+ [µm]?s /m)
    await watch.prints(new RegExp(`^${volume.uris[0]} +8 +1 +0 bytes/s +[\\d.]+ [KMG]iB/s +up$`, 'm'))
    // Old values do not stay: the latencies go with the traffic.
    await watch.prints(/iB\/s[\s\S]*^write +0\/s +0 bytes\/s$/m)
    expect(await watch.stop('SIGINT')).toMatchObject({ status: 0, signal: null })
    expect(watch.stderr).toBe('')
  })

  it('--watch --json is a line each time', async () => {
    await using watch = new Program(NBD_CLIENT, ['status', '--json', '--watch', '0.1'], {
      RDMAKIT_RUN: folder.path,
    })
    await watch.prints(/^\[.*\]\n\[.*\]\n/)
    expect(await watch.stop('SIGTERM')).toMatchObject({ status: 0, signal: null })
    for (const line of watch.stdout.split('\n').slice(0, -1))
      expect(JSON.parse(line)).toMatchObject([{ pid: volume.client.process.pid, size: 8 * MIB }])
  })

  // Last, for it ends one of the servers.
  it('shows what a lost server means', async () => {
    await volume.servers[1]?.stop('SIGKILL')
    await volume.client.says(new RegExp(`lost ${volume.uris[1]}`))
    const { stdout } = await status(folder.path)
    expect(stdout).toMatch(/ 8 degraded$/m)
    expect(stdout).toMatch(new RegExp(`^${volume.uris[1]} .* failed: \\S`, 'm'))
    const [json] = JSON.parse((await status(folder.path, '--json')).stdout)
    expect(json).toMatchObject({
      slabs: { mapped: 0, degraded: 8, refilling: 0, lost: 0 },
      servers: [
        { uri: volume.uris[0], index: 0, state: 'up', slabs: 8 },
        { uri: volume.uris[1], index: 1, state: 'failed', reason: expect.any(String) },
      ],
      statistics: { writtenPages: 2048, lostPages: 0 },
    })
  })
})

it.each(['0', 'often', '3601'])('--watch %s is refused', async (seconds) => {
  using folder = temporaryFolder()
  expect(await status(folder.path, '--watch', seconds)).toMatchObject({
    status: 64,
    stderr: expect.stringMatching(/number of seconds from 0\.1 to 3600/),
  })
})
