import { defineConfig } from 'vitest/config'

/** Tests on the host that boot guests of their own: the harness itself. */
export default defineConfig({
  test: {
    include: ['test/lab/host-tests/**/*.test.ts'],
    pool: 'forks',
    maxWorkers: 1,
    fileParallelism: false,
    testTimeout: 240_000,
    hookTimeout: 120_000,
    reporters: [
      'verbose',
      ['./scripts/reports/results-reporter.mjs', { outputFile: 'test-results/lab-harness.json' }],
    ],
  },
})
