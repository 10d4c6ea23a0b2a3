import { expect, test } from 'vitest'
import { LocalShell } from '../local-shell.js'
import { ensureArrayWalk } from '../native.js'
import { walkOverNbdkit } from '../nbdkit-swap.js'

// The lab must be right before what it measures is: a swap known to work has to pass here.
test('an array twice its memory limit survives swap over nbdkit and TCP', async () => {
  const shell = new LocalShell()
  const mebibyte = 1024 * 1024
  const walk = await walkOverNbdkit(shell, shell, {
    program: await ensureArrayWalk(),
    bytes: 64 * mebibyte,
    limitBytes: 32 * mebibyte,
    address: '10.77.0.1',
  })
  console.log(`nbdkit over TCP: ${JSON.stringify(walk)}`)
  expect(walk.wrongPages).toBe(0)
  expect(walk.pagesOut).toBeGreaterThan(7_500)
  expect(walk.pagesIn).toBeGreaterThan(7_500)
})
