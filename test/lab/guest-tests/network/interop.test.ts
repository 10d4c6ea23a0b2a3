import { describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { CommandResult } from '../../base/shell.js'

const shell = new LocalShell()

/** Where 10.78.0.2 is, without an RDMA device: the other end of siw0's wire (guest/siw.sh). */
const beyondTheWire = ['ip', 'netns', 'exec', 'siw-peer']

interface Arrangement {
  /** of the server */
  address: string
  /** how ours speaks: through the kernel's device, or TCP of its own in user space */
  scheme: 'rdma' | 'iwarp'
  /** where ours runs */
  place?: readonly string[]
}

const ours = ({ address, scheme, place = [] }: Arrangement) => [
  ...[...place, 'node', 'examples/dist/rping/main.js', '-v', '-a', `${scheme}://${address}:7174`],
]
// rdma-core's. Line by line, as a file it writes to would get its output in blocks.
const theirs = ({ address }: Arrangement) => ['stdbuf', '-oL', 'rping', '-v', '-a', address, '-p', '7174']

function expectPings({ status, stdout, stderr }: CommandResult, pings: number): void {
  expect({ status, stderr }).toMatchObject({ status: 0 })
  expect(stdout.match(/^(server )?ping data: rdma-ping-\d+: /gm)).toHaveLength(pings)
}

/** `-V`: the client compares each ping's bytes with what comes back. */
const pinging = (pings: number, bytes: number) => ['-c', '-V', '-C', String(pings), '-S', String(bytes)]

describe('our rping serves that of librdmacm', () => {
  const arrangements: [string, Arrangement][] = [
    ['on rxe0, over rxe0', { scheme: 'rdma', address: '10.77.0.1' }],
    ['on siw0, over siw0', { scheme: 'rdma', address: '10.78.0.1' }],
    ['on siw0, in user space', { scheme: 'iwarp', address: '10.78.0.2', place: beyondTheWire }],
  ]
  test.each(arrangements)('%s', async (_, arrangement) => {
    const server = shell.start([...ours(arrangement), '-s', '-P'])
    try {
      await server.waitForLine(/^listening /, 60_000)
      for (const bytes of [64, 65_535]) {
        const client = [...theirs(arrangement), ...pinging(10, bytes)]
        expectPings(await shell.exec(client, { deadlineMs: 60_000 }), 10)
      }
      expectPings(await server.stop(), 20)
      expect(server.stderr).toBe('')
    } finally {
      await server.stop()
    }
  })
})

describe('our rping pings that of librdmacm', () => {
  const arrangements: [string, Arrangement][] = [
    ['on rxe0, over rxe0', { scheme: 'rdma', address: '10.77.0.1' }],
    ['on siw0, over siw0', { scheme: 'rdma', address: '10.78.0.1' }],
    // Segments of 1448 bytes, then of 64 KiB: an FPDU of either end fills one.
    ['on siw0, from user space', { scheme: 'iwarp', address: '10.78.0.1', place: beyondTheWire }],
    ['on siw0, from user space over lo', { scheme: 'iwarp', address: '10.78.0.1' }],
  ]
  test.each(arrangements)('%s', async (_, arrangement) => {
    const server = shell.start([...theirs(arrangement), '-s', '-d', '-S', '65535'])
    try {
      await server.waitForLine(/^rdma_listen/, 60_000)
      const client = [...ours(arrangement), ...pinging(10, 65_535)]
      expectPings(await shell.exec(client, { deadlineMs: 60_000 }), 10)
      expectPings(await server.ended(60_000), 10)
    } finally {
      await server.stop()
    }
  })
})
