import { existsSync } from 'node:fs'
import { defineConfig } from 'vitest/config'

if (!existsSync('/run/rdmakit-lab')) throw new Error('these tests run inside a guest: npm run lab')

/** Tests inside the one guest: rxe0 is up at 10.77.0.1, nbd is loaded, /dev/vda is there. */
export default defineConfig({
  test: {
    include: ['test/lab/guest-tests/**/*.test.ts', 'packages/verbs/test/conformance/**/*.test.ts'],
    // The conformance suite of verbs, unchanged, on the kernel's device.
    env: { RDMAKIT_CONFORMANCE_URI: 'rdma://10.77.0.1:0' },
    // All tests share one kernel's devices, so they run one after another.
    pool: 'forks',
    maxWorkers: 1,
    fileParallelism: false,
    testTimeout: 180_000,
    hookTimeout: 60_000,
    // One line as each test ends: an emulated guest is slow, and a silent one looks dead.
    reporters: ['verbose', ['json', { outputFile: '/run/rdmakit-lab-results.json' }]],
  },
})
