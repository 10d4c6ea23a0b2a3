import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

// Node reads the certificates that it names at every start, for 90 ms here: a sixth of the end-to-end tests' time, which
// start a program many hundred times and ask no server but their own.
delete process.env.NODE_EXTRA_CA_CERTS

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

/**
 * What tells that a test looks at its whole process, puts something else in the place of a part of it, or has a helper that
 * is made and removed with it.
 */
const OF_THE_PROCESS =
  /\/proc\/self|escriptors\(|growth\(|memoryUsage|resourceUsage|\bgc\(|process\.(on|once|emit)\(|vi\.mock\(|spyOn\(process|sharedAreas\(|volume-client/

/**
 * The unit tests for which others may have run in their process before: 0.5 s of processor time less for each file, which
 * is what a process that has loaded vitest and a package takes.
 */
function inSharedProcesses(): string[] {
  const files = readdirSync('packages')
    .map((name) => `packages/${name}/test`)
    .concat('bench/test')
    .filter((folder) => existsSync(folder))
    .flatMap((folder) =>
      readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((file) => join(folder, file)),
    )
  return files.filter(
    (file) => /(?<!\.soak)\.test\.ts$/.test(file) && !OF_THE_PROCESS.test(readFileSync(file, 'utf8')),
  )
}

/** The conformance suite of verbs, unchanged, on a provider. */
const onProvider = (name: string, uri: string) => ({
  extends: true as const,
  test: { name, include: [conformance], env: { RDMAKIT_CONFORMANCE_URI: uri } },
})

const elsewhere = [conformance, ...(process.env.RDMAKIT_TIER === 'soak' ? [] : [soak])]
/** Under ASan each is looked at when its process ends. */
const shared = sanitized ? [] : inSharedProcesses()

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
          exclude: [...elsewhere, ...shared],
        },
      },
      ...(shared.length === 0
        ? []
        : [
            {
              extends: true as const,
              test: { name: 'units', include: shared, exclude: elsewhere, isolate: false },
            },
          ]),
      onProvider('iwarp', 'iwarp://127.0.0.1:0'),
      onProvider('shm', 'shm:///tmp/rdmakit-conformance-%p.sock'),
    ],
  },
})
