import { beforeAll, expect, test } from 'vitest'
import { effort } from '../../../effort.js'
import { LocalShell } from '../../base/local-shell.js'
import { ensureArrayWalk } from '../../machine/native.js'
import { peerServer } from '../../machine/test-guest.js'
import { rdmakitSwap } from '../../swap/remote-swap.js'
import { halfInMemory, walkArray } from '../../swap/swap.js'

/** Of the array. */
const mebibytes = Math.min(48, effort(32))
const shell = new LocalShell()
let program: string

beforeAll(async () => {
  program = await ensureArrayWalk()
})

// This guest's kernel swaps to the memory of the other guest, over Soft-RoCE on the wire between them.
test.each(['/dev/nbd0', '/dev/ublkb0'])(
  'swap on %s comes back right from the other machine',
  async (device) => {
    const { attach, attached } = rdmakitSwap(peerServer, '', '64M', device)
    const client = shell.start(attach)
    try {
      await client.waitForLine(attached, 120_000)
      const walk = await walkArray(shell, { program, ...halfInMemory(mebibytes) })
      expect(walk.wrongPages).toBe(0)
      expect(walk.pagesOut).toBeGreaterThan(5_000)
      expect(walk.pagesIn).toBeGreaterThan(5_000)
      // Every protection against a swap deadlock is granted.
      expect(client.stderr).not.toMatch(/warning/)
      expect(await client.stop(120_000)).toMatchObject({ status: 0 })
    } finally {
      await client.stop(120_000)
    }
  },
)
