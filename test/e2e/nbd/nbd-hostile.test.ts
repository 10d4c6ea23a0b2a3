// A thousand hostile connections at once: a good client does not lose its connection, and a new one gets in. What they
// cost its pace: nbd-hostile.soak.test.ts.
import { readdirSync, readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { effort } from '../../effort.js'
import { VerifyingFio } from '../helpers/fio.js'
import { HostileClients } from '../helpers/hostile-clients.js'
import { complete, startServe, startServer, statusIn, temporaryFolder, until } from '../helpers/processes.js'

/** Pages that a good client writes, and reads back, under attack. */
const PAGES = effort(2_000)

it('a thousand hostile connections take nothing from a good one, and keep no new one out', async () => {
  using folder = temporaryFolder()
  const { program: server, uri: swap } = await startServer(['--memory', '16M', '--slab-size', '8M'])
  await using _server = server
  const { program: client, socket, uri } = await startServe(swap, '16M', folder.path)
  await using _client = client
  const proc = (name: string) => `/proc/${client.process.pid}/${name}`
  const residentKib = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(proc('status'), 'utf8'))?.[1])
  const written = async () => {
    const { statistics } = await statusIn<{ statistics: { lanes: { writes: number }[] } }>(folder.path)
    return statistics.lanes.reduce((sum, { writes }) => sum + writes, 0)
  }
  await complete('qemu-io', ['-f', 'raw', '-c', 'write -P 1 0 16M', uri])
  await using good = new VerifyingFio(uri, '16m')
  await until(written, (pages) => pages > 1_000)
  const resident = residentKib()
  await using attackers = new HostileClients(socket)
  // More than the server keeps at once have come, and gone again.
  await until(
    () => attackers.thrownOut,
    (count) => count > 1_000,
  )
  const before = await written()
  await until(written, (pages) => pages > before + PAGES)
  await until(
    () => attackers.connected,
    (count) => count > 100,
  )
  // The server keeps 256 handshakes, its lanes and its own descriptors.
  expect(readdirSync(proc('fd')).length).toBeLessThan(500)
  await complete('nbdinfo', ['--size', uri])
  await good.end()
  expect(residentKib() - resident).toBeLessThan(64 * 1024)
})
