import { expect, test } from 'vitest'
import { LocalShell } from '../../local-shell.js'
import { rping } from '../../rping.js'
import { until } from '../../until.js'

const shell = new LocalShell()
/** 18515, perftest's, where a socket listens, as /proc/net/tcp has it. */
const port = ':4853 00000000:0000 0A'

test('rdma-core lists the kernel iWARP device, and its port is active', async () => {
  const info = await shell.run(['ibv_devinfo', '-d', 'siw0'])
  expect(info).toMatch(/transport:\s+iWARP/)
  expect(info).toMatch(/state:\s+PORT_ACTIVE/)
})

test('rping connects to itself through the device', async () => {
  expect(await rping(shell, shell, '10.78.0.1', 5)).toMatch(/ping data: rdma-ping-4/)
})

// An iWARP queue pair is connected by the connection manager only, hence -R.
test.each(['ib_write_lat', 'ib_read_lat', 'ib_send_lat'])('%s of perftest runs over it', async (program) => {
  const command = [program, '-d', 'siw0', '-R', '-n', '100', '-F']
  const server = shell.start(['stdbuf', '-oL', ...command])
  try {
    // It says that it waits before it does.
    await until('perftest listens', 60_000, async () => (await shell.run('cat /proc/net/tcp')).includes(port))
    expect(await shell.run([...command, '10.78.0.1'])).toMatch(/^\s*2\s+100\s+\d/m)
    expect(await server.ended(60_000)).toMatchObject({ status: 0 })
  } finally {
    await server.stop()
  }
})
