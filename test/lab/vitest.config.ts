import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { defineConfig } from 'vitest/config'
import { top } from './paths.js'

if (!existsSync('/run/rdmakit-lab')) throw new Error('these tests run inside a guest: npm run lab')

/** The conformance suite of verbs, unchanged, on one of the kernel's devices. */
const onDevice = (name: string, uri: string) => ({
  extends: true as const,
  test: {
    name,
    include: ['packages/verbs/test/conformance/**/*.test.ts'],
    env: { RDMAKIT_CONFORMANCE_URI: uri },
    // One process for all files: an emulated guest takes 4 s to load the packages.
    isolate: false,
  },
})

/** Tests inside the one guest: rxe0 is up at 10.77.0.1, siw0 at 10.78.0.1, nbd is loaded, /dev/vda is there. */
export default defineConfig({
  test: {
    // All tests share one kernel's devices, so they run one after another.
    pool: 'forks',
    maxWorkers: 1,
    fileParallelism: false,
    testTimeout: 180_000,
    hookTimeout: 60_000,
    projects: [
      {
        extends: true,
        test: { name: 'lab', include: ['test/lab/guest-tests/**/*.test.ts'], isolate: false },
      },
      onDevice('rxe', 'rdma://10.77.0.1:0'),
      onDevice('siw', 'rdma://10.78.0.1:0'),
    ],
    // One line as each test ends: an emulated guest is slow, and a silent one looks dead.
    reporters: [
      'verbose',
      [join(top, 'scripts/results-reporter.mjs'), { outputFile: '/run/rdmakit-lab-results.json' }],
    ],
  },
})
