import { expect, test } from 'vitest'
import { iserSwap } from '../iser-swap.js'
import { LocalShell } from '../local-shell.js'
import { ensureArrayWalk } from '../native.js'
import { nbdkitSwap } from '../nbdkit-swap.js'
import { nvmeRdmaSwap, nvmeTcpSwap } from '../nvmf-swap.js'
import { walkArray } from '../swap.js'

const mebibyte = 1024 * 1024

// The lab must be right before what it measures is: swap by others has to pass here, twice, so that the
// second finds nothing left of the first.
test.each([nbdkitSwap, iserSwap, nvmeRdmaSwap, nvmeTcpSwap])(
  'an array twice its memory limit survives swap over $name, and over what comes after it',
  async (path) => {
    const shell = new LocalShell()
    const walk = { program: await ensureArrayWalk(), bytes: 64 * mebibyte, limitBytes: 32 * mebibyte }
    const place = { server: shell, client: shell, address: '10.77.0.1', bytes: 2 * walk.bytes }
    for (let time = 0; time < 2; time++) {
      const walked = await path.withSwap(place, () => walkArray(shell, walk))
      console.log(`${path.name}: ${JSON.stringify(walked)}`)
      expect(walked.wrongPages).toBe(0)
      expect(walked.pagesOut).toBeGreaterThan(7_500)
      expect(walked.pagesIn).toBeGreaterThan(7_500)
    }
  },
  240_000,
)
