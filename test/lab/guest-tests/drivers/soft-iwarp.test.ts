import { expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { rping } from '../../base/rping.js'
import { until } from '../../base/until.js'

const shell = new LocalShell()
/** A port where a socket listens, as /proc/net/tcp has it. */
const listens = (port: number) => `:${port.toString(16).toUpperCase()} 00000000:0000 0A`

test('rdma-core lists the kernel iWARP device, and its port is active', async () => {
  const info = await shell.run(['ibv_devinfo', '-d', 'siw0'])
  expect(info).toMatch(/transport:\s+iWARP/)
  expect(info).toMatch(/state:\s+PORT_ACTIVE/)
})

test('rping connects to itself through the device', async () => {
  expect(await rping(shell, shell, '10.78.0.1', 5)).toMatch(/ping data: rdma-ping-4/)
})

// An iWARP queue pair is connected by the connection manager only, hence -R.
// Each has its own port: the kernel goes on listening for a moment at that of a program that has ended.
test.each([
  ['ib_write_lat', 18_515],
  ['ib_read_lat', 18_516],
  ['ib_send_lat', 18_517],
] as const)('%s of perftest runs over it', async (program, port) => {
  const command = [program, '-d', 'siw0', '-R', '-n', '100', '-F', '-p', String(port)]
  const server = shell.start(['stdbuf', '-oL', ...command])
  try {
    // It says that it waits before it does.
    await until('perftest listens', 60_000, async () =>
      (await shell.run('cat /proc/net/tcp')).includes(listens(port)),
    )
    expect(await shell.run([...command, '10.78.0.1'])).toMatch(/^\s*2\s+100\s+\d/m)
    expect(await server.ended(60_000)).toMatchObject({ status: 0 })
  } finally {
    await server.stop()
  }
})
