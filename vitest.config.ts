import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

const conformance = 'packages/verbs/test/conformance/**/*.test.ts'
/** What takes long or shows its faults rarely: npm run soak sets RDMAKIT_TIER. */
const soak = '**/*.soak.test.ts'

/** The addons are under ASan (scripts/addons-asan.mjs). */
const sanitized = process.env.RDMAKIT_COLLECT !== undefined
/** Only ends a hang; under sanitizers everything takes some times as long. */
const PATIENCE_MS = sanitized ? 300_000 : 60_000

/** A third of a minute to a whole one, mostly waiting. The longest is the last. */
const LONG = ['replicas', 'pub-sub', 'reconnect', 'restart', 'examples', 'bad-input', 'upgrade', 'breaks']

/** A new clone knows of no file how long it takes, and would come to the longest last, for it is short. */
class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files)
    const rank = ({ moduleId }: TestSpecification) =>
      LONG.findIndex((name) => moduleId.endsWith(`/${name}.test.ts`))
    return sorted.toSorted((a, b) => rank(b) - rank(a))
  }
}

/** The conformance suite of verbs, unchanged, on a provider. */
const onProvider = (name: string, uri: string) => ({
  extends: true as const,
  test: { name, include: [conformance], env: { RDMAKIT_CONFORMANCE_URI: uri } },
})

export default defineConfig({
  test: {
    // A native addon lives in a process of its own. Most tests wait for something most of the time.
    pool: 'forks',
    sequence: { sequencer: LongFirst },
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
