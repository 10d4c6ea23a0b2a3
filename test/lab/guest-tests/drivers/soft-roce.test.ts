import { expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { rping } from '../../base/rping.js'

const shell = new LocalShell()

test('rdma-core lists the Soft-RoCE device', async () => {
  expect(await shell.run(['ibv_devices'])).toMatch(/^\s+rxe0\s/m)
})

test('the device is active with a path MTU of 4096', async () => {
  const info = await shell.run(['ibv_devinfo', '-d', 'rxe0'])
  expect(info).toMatch(/state:\s+PORT_ACTIVE/)
  expect(info).toMatch(/active_mtu:\s+4096/)
})

test('rping connects to itself through the device', async () => {
  expect(await rping(shell, shell, '10.77.0.1', 5)).toMatch(/ping data: rdma-ping-4/)
})
