import { defineConfig } from 'vitest/config'

const conformance = 'packages/verbs/test/conformance/**/*.test.ts'

/** The conformance suite of verbs, unchanged, on a provider. */
const onProvider = (name: string, uri: string) => ({
  extends: true as const,
  test: { name, include: [conformance], env: { RDMAKIT_CONFORMANCE_URI: uri } },
})

export default defineConfig({
  test: {
    // A native addon lives in a process of its own; two CPUs carry two of them.
    pool: 'forks',
    maxWorkers: 2,
    testTimeout: 30_000,
    hookTimeout: 30_000,
    // A second, the default, is little for what other threads and processes do on a machine that is busy.
    expect: { poll: { timeout: 10_000 } },
    projects: [
      {
        extends: true,
        test: {
          name: 'tests',
          include: ['packages/*/test/**/*.test.ts', 'test/e2e/**/*.test.ts'],
          exclude: [conformance],
        },
      },
      onProvider('iwarp', 'iwarp://127.0.0.1:0'),
      onProvider('shm', 'shm:///tmp/rdmakit-conformance-%p.sock'),
    ],
  },
})
