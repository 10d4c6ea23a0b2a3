import { expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { peerAddress } from '../../machine/test-guest.js'

test('rping connects this guest to the other one over Soft-RoCE, and every byte comes back', async () => {
  const pings = ['rping', '-c', '-v', '-V', '-C', '5', '-a', peerAddress]
  expect(await new LocalShell().run(pings)).toMatch(/ping data: rdma-ping-4/)
})
