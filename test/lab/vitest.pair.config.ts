import { defineConfig } from 'vitest/config'

/** Tests on the host that boot guests of their own: two on one wire. */
export default defineConfig({
  test: {
    include: ['test/lab/pair-tests/**/*.test.ts'],
    pool: 'forks',
    maxWorkers: 1,
    fileParallelism: false,
    testTimeout: 240_000,
    hookTimeout: 120_000,
    reporters: ['verbose', ['json', { outputFile: 'test-results/lab-pair.json' }]],
  },
})
