import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { defineConfig } from 'vitest/config'
import { top } from './base/paths.js'

if (!existsSync('/run/rdmakit-lab')) throw new Error('these tests run inside a guest: npm run test:lab')

/** What npm run soak runs besides. */
const soak = process.env.RDMAKIT_TIER === 'soak' ? [] : ['**/*.soak.test.ts']

// One process for all files: an emulated guest takes 4 s to load the packages.
const together = { isolate: false }

/** The conformance suite of verbs, unchanged, on one of the kernel's devices. */
const onDevice = (name: string, uri: string) => ({
  extends: true as const,
  // As built: to transform its sources takes longer than some of the tests.
  resolve: {
    alias: [{ find: /^\.\.\/\.\.\/src\//, replacement: `${join(top, 'packages/verbs/dist')}/` }],
  },
  test: {
    ...together,
    name,
    include: ['packages/verbs/test/conformance/**/*.test.ts'],
    env: {
      RDMAKIT_CONFORMANCE_URI: uri,
      // Repetition that is cheap on a processor takes ten times as long on an emulated one.
      RDMAKIT_EFFORT: String(0.2 * Number(process.env.RDMAKIT_EFFORT ?? 1)),
    },
  },
})

/** Tests inside the one guest, whose devices and addresses test-guest.ts names. */
export default defineConfig({
  test: {
    // All tests share one kernel's devices, so they run one after another.
    pool: 'forks',
    maxWorkers: 1,
    fileParallelism: false,
    testTimeout: 180_000,
    hookTimeout: 120_000,
    // What is built is loaded by Node itself: to transform a package takes an emulated guest a quarter of a minute.
    server: { deps: { external: [/\/packages\/[^/]+\/dist\//] } },
    projects: [
      {
        extends: true,
        test: { ...together, name: 'drivers', include: ['test/lab/guest-tests/drivers/*.test.ts'] },
      },
      ...['device', 'network', 'swap'].map((name) => ({
        extends: true as const,
        test: { ...together, name, include: [`test/lab/guest-tests/${name}/*.test.ts`], exclude: soak },
      })),
      onDevice('rxe', 'rdma://10.77.0.1:0'),
      onDevice('siw', 'rdma://10.78.0.1:0'),
    ],
    // One line as each test ends: an emulated guest is slow, and a silent one looks dead.
    reporters: [
      'verbose',
      [join(top, 'scripts/reports/results-reporter.mjs'), { outputFile: '/run/rdmakit-lab-results.json' }],
    ],
  },
})
