import { describe, expect, test } from 'vitest'
import { LocalShell } from '../local-shell.js'
import type { Command } from '../shell.js'

const shell = new LocalShell()

const ours = ['node', 'examples/dist/rping/main.js']
const theirs = ['stdbuf', '-oL', 'rping']
/** Where 10.78.0.2 is, without an RDMA device: TCP of user space, on the wire to siw0 (guest/siw.sh). */
const beyondTheWire = ['ip', 'netns', 'exec', 'siw-peer']

interface Ends {
  /** of the server */
  address: string
  server: 'ours' | 'librdmacm'
  /** schemes under which ours names the address; `iwarp` runs beyond the wire */
  scheme: 'rdma' | 'iwarp'
}

/** Our program for one end, librdmacm's rping for the other. */
function commands({ address, server, scheme }: Ends): { server: string[]; client: string[] } {
  const place = scheme === 'iwarp' ? beyondTheWire : []
  const own = [...place, ...ours, '-a', `${scheme}://${address}:7174`]
  const their = [...theirs, '-a', address, '-p', '7174']
  return server === 'ours'
    ? { server: [...own, '-s'], client: [...their, '-c'] }
    : { server: [...their, '-s', '-d'], client: [...own, '-c'] }
}

/** What `pings` of `size` bytes print at both ends, once both have ended well. */
async function run(ends: Ends, pings: number, size: number): Promise<void> {
  const { server, client } = commands(ends)
  const options = ['-S', String(size), '-C', String(pings), '-v']
  const listening = shell.start([...server, ...options])
  try {
    await listening.waitForLine(/^(listening|rdma_listen)/, 15_000)
    const { status, stdout, stderr } = await shell.exec([...client, ...options, '-V'] as Command, {
      deadlineMs: 30_000,
    })
    expect({ status, stderr }).toMatchObject({ status: 0 })
    expect(stdout.match(/^ping data: rdma-ping-\d+: /gm)).toHaveLength(pings)
    const end = await listening.ended(10_000)
    expect({ status: end.status, stderr: end.stderr }).toMatchObject({ status: 0 })
    expect(end.stdout.match(/^server ping data: rdma-ping-\d+: /gm)).toHaveLength(pings)
  } finally {
    await listening.stop()
  }
}

const arrangements: [string, Ends][] = [
  ['rxe, our server', { scheme: 'rdma', server: 'ours', address: '10.77.0.1' }],
  ['rxe, our client', { scheme: 'rdma', server: 'librdmacm', address: '10.77.0.1' }],
  ['siw, our server', { scheme: 'rdma', server: 'ours', address: '10.78.0.1' }],
  ['siw, our client', { scheme: 'rdma', server: 'librdmacm', address: '10.78.0.1' }],
  ['siw, our server in user space', { scheme: 'iwarp', server: 'ours', address: '10.78.0.2' }],
  ['siw, our client in user space', { scheme: 'iwarp', server: 'librdmacm', address: '10.78.0.1' }],
]

describe.each(arrangements)('rping of librdmacm and ours over %s', (_, ends) => {
  test('20 pings of 64 bytes', async () => run(ends, 20, 64))
  test('5 pings of 65,535 bytes', async () => run(ends, 5, 65_535))
})
