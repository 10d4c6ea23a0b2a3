import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { mkdir, mkdtemp, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { LocalShell } from '../base/local-shell.js'
import { cache, guestScripts, top } from '../base/paths.js'

/** The guest's agent, compiled when its source changed. */
export async function ensureAgent(): Promise<string> {
  return await compile('agent', join(guestScripts, 'programs', 'agent.cc'))
}

/** The thesis's micro-benchmark, compiled when its source changed. */
export async function ensureArrayWalk(): Promise<string> {
  return await compile('array-walk', join(top, 'bench', 'native', 'array-walk.cc'))
}

/** A program that swaps and verifies until it is told to end. */
export async function ensurePageChurn(): Promise<string> {
  return await compile('page-churn', join(guestScripts, 'programs', 'page-churn.cc'))
}

/** What counts a program's allocations (guest/programs/count-allocations.cc), to be preloaded. */
export async function ensureAllocationCounter(): Promise<string> {
  return await compile('count-allocations', join(guestScripts, 'programs', 'count-allocations.cc'), [
    '-shared',
    '-fPIC',
  ])
}

/** The test of a device's verbs (test/native/device/ibverbs_smoke.cc), as programs of a guest run it. */
export const deviceTest = join('build', 'native-plain', 'ibverbs_smoke')

/** The ping-pong over the package's native layer (bench/native), likewise. */
export const verbsPingpong = join('build', 'bench', 'verbs-pingpong')

/** The same over the ring. */
export const ringPingpong = join('build', 'bench', 'ring-pingpong')

export const buildDeviceTest = (): Promise<void> => buildTestProgram('plain', 'ibverbs_smoke')

export const buildVerbsBenchmarks = (): Promise<void> => buildBenchmark(verbsPingpong)

export const buildRingBenchmarks = (): Promise<void> => buildBenchmark(ringPingpong)

/** The test of the block engine on a device of ublk, with each set of sanitizers, as programs of a guest run it. */
export const sanitizedDeviceTests = {
  'ASan and UBSan': join('build', 'native-asan', 'ublk_smoke'),
  TSan: join('build', 'native-tsan', 'ublk_smoke'),
} as const

export async function buildSanitizedDeviceTests(): Promise<void> {
  for (const configuration of ['asan', 'tsan']) await buildTestProgram(configuration, 'ublk_smoke')
}

async function buildTestProgram(configuration: string, name: string): Promise<void> {
  await new LocalShell().run(['bash', 'scripts/native.sh', 'program', configuration, name], {
    deadlineMs: 600_000,
  })
}

/** One program of bench/native, with the providers that it runs on. */
async function buildBenchmark(program: string): Promise<void> {
  const shell = new LocalShell()
  const folder = dirname(program)
  await shell.run(['cmake', '-S', 'bench/native', '-B', folder, '-DCMAKE_BUILD_TYPE=Release'])
  await shell.run(['cmake', '--build', folder, '--target', basename(program), '--parallel', '2'], {
    deadlineMs: 600_000,
  })
}

// Static: a program starts without a walk through the host's libraries over 9p.
async function compile(name: string, source: string, kind: readonly string[] = ['-static']): Promise<string> {
  const identity = createHash('sha256').update(readFileSync(source)).digest('hex').slice(0, 16)
  const folder = join(cache, 'bin')
  const file = join(folder, `${name}-${identity}`)
  if (existsSync(file)) return file
  await mkdir(folder, { recursive: true })
  const work = await mkdtemp(join(folder, 'compiling-'))
  try {
    const built = join(work, name)
    await new LocalShell().run(
      ['g++', '-std=c++20', '-O2', '-Wall', '-Wextra', ...kind, '-o', built, source],
      {
        deadlineMs: 120_000,
      },
    )
    await rename(built, file)
    return file
  } finally {
    await rm(work, { recursive: true, force: true })
  }
}
