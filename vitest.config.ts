import { defineConfig } from 'vitest/config'

const conformance = 'packages/verbs/test/conformance/**/*.test.ts'
/** What takes long or shows its faults rarely: npm run soak sets RDMAKIT_TIER. */
const soak = '**/*.soak.test.ts'

/** The addons are under ASan (scripts/addons-asan.mjs). */
const sanitized = process.env.RDMAKIT_COLLECT !== undefined
/** Only ends a hang; under sanitizers everything takes some times as long. */
const PATIENCE_MS = sanitized ? 300_000 : 60_000

/** The conformance suite of verbs, unchanged, on a provider. */
const onProvider = (name: string, uri: string) => ({
  extends: true as const,
  test: { name, include: [conformance], env: { RDMAKIT_CONFORMANCE_URI: uri } },
})

export default defineConfig({
  test: {
    // A native addon lives in a process of its own. Most tests wait for something most of the time.
    pool: 'forks',
    // What is built is loaded by Node itself: importing takes half the time.
    server: { deps: { external: [/\/packages\/[^/]+\/dist\//] } },
    maxWorkers: 4,
    testTimeout: PATIENCE_MS,
    hookTimeout: PATIENCE_MS,
    setupFiles: sanitized ? ['test/collect.ts'] : [],
    // A second, the default, is little for what other threads and processes do on a machine that is busy.
    expect: { poll: { timeout: 20_000 } },
    projects: [
      {
        extends: true,
        test: {
          name: 'tests',
          include: [
            'packages/*/test/**/*.test.ts',
            'test/e2e/**/*.test.ts',
            'test/docs/**/*.test.ts',
            'bench/test/**/*.test.ts',
          ],
          exclude: [conformance, ...(process.env.RDMAKIT_TIER === 'soak' ? [] : [soak])],
        },
      },
      onProvider('iwarp', 'iwarp://127.0.0.1:0'),
      onProvider('shm', 'shm:///tmp/rdmakit-conformance-%p.sock'),
    ],
  },
})
