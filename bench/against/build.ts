// A build that is measured: a checkout's packages, and the benchmark programs that run on them.
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { run } from '../core/child.js'
import { builtCheckout, CheckoutError } from './checkout.js'

export const top = fileURLToPath(new URL('../../..', import.meta.url)).replace(/\/$/, '')

/** Scripts that import the packages, from the top of a checkout. `slots` speaks to a native program. */
export const SCRIPTS = {
  ringPeer: 'bench/dist/ring/peer.js',
  connections: 'bench/dist/connections/peer.js',
  micro: 'bench/dist/micro/run.js',
  slots: 'bench/dist/verbs-slots.js',
  server: 'examples/dist/parameter-server/server.js',
  worker: 'examples/dist/parameter-server/worker.js',
} as const

export interface Build {
  readonly label: 'this' | 'other'
  /** The checkout whose packages are measured. */
  readonly root: string
  /** Where the native benchmarks are: those of bench/native, on this build's native layers. */
  readonly programs: string
  /** Node's arguments to run a script with this build's packages. */
  script(name: keyof typeof SCRIPTS): readonly string[]
}

/** The checkouts whose scripts and whose bench/native are run. */
interface Sources {
  readonly scripts: string
  readonly native: string
}

export interface Builds {
  readonly ours: Build
  readonly other: Build | undefined
  /** Selects the sources that measure the other build. */
  readonly sources: Sources
}

const mine: Sources = { scripts: top, native: top }

/** This checkout, by itself. */
export const oneBuild = (): Builds => ({
  ours: {
    label: 'this',
    root: top,
    programs: join(top, 'build/bench'),
    script: (name) => [join(top, SCRIPTS[name])],
  },
  other: undefined,
  sources: mine,
})

/**
 * This checkout and another, whose programs and scripts are the same as far as they can be: this checkout's, on
 * either's packages, so that only the product differs.
 * @throws CheckoutError
 */
export async function twoBuilds(
  folder: string,
  needsNative: boolean,
  say: (line: string) => void,
): Promise<Builds> {
  const root = builtCheckout(folder)
  const identity = createHash('sha256').update(root).digest('hex').slice(0, 8)
  const programs = join(top, 'build', `bench-against-${identity}`)
  let scripts = top
  const obstacle = await loads(root)
  if (obstacle !== undefined) {
    if (!existsSync(join(root, SCRIPTS.ringPeer)))
      throw new CheckoutError(
        `this checkout's bench scripts do not load on the packages of ${root}, which has none: ${obstacle}`,
      )
    scripts = root
    say(
      `this checkout's bench scripts do not load on the packages of ${root}: there, its own are run (${obstacle})`,
    )
  }
  let native = top
  if (needsNative && !buildPrograms({ programs, packages: root, sources: top, quiet: true })) {
    native = root
    say(`this checkout's bench/native does not compile on the packages of ${root}: there, its own is run`)
    buildPrograms({ programs: `${programs}-own`, packages: root, sources: root })
  }
  const sources = { scripts, native }
  return {
    ours: hooked('this', top, join(top, 'build/bench'), mine),
    other: hooked('other', root, native === top ? programs : `${programs}-own`, sources),
    sources,
  }
}

function hooked(label: Build['label'], root: string, programs: string, sources: Sources): Build {
  return {
    label,
    root,
    programs,
    script: (name) => [
      ...hook(root),
      join(name === 'slots' ? sources.native : sources.scripts, SCRIPTS[name]),
    ],
  }
}

function hook(root: string): readonly string[] {
  const url = pathToFileURL(join(top, 'bench/dist/against/resolve.js'))
  url.searchParams.set('checkout', root)
  return ['--import', url.href]
}

/** @returns why scripts of this checkout cannot run on those packages: mostly something that they do not export */
async function loads(root: string): Promise<string | undefined> {
  const modules = ['ring/ring.js', 'ring/default-ring.js', 'ring/send-receive.js'].map((name) =>
    join(top, 'bench/dist', name),
  )
  const imports = modules.map((module) => `import ${JSON.stringify(pathToFileURL(module).href)}`).join(';')
  const args = [...hook(root), '--input-type=module', '--eval', imports]
  try {
    await run(process.execPath, args, { timeout: 60_000 })
    return undefined
  } catch (failure) {
    const { stderr = '', message } = failure as Error & { stderr?: string }
    return /^\w*Error\b.*$/m.exec(stderr)?.[0] ?? message
  }
}

interface Programs {
  /** Where they are built. */
  programs: string
  /** The checkouts of the packages and of bench/native. */
  packages: string
  sources: string
  /** Without the compiler's messages: what fails is tried another way. */
  quiet?: boolean
}

/** Builds what the suite verbs runs. @returns false when quiet and it did not compile */
export function buildPrograms({ programs, packages, sources, quiet = false }: Programs): boolean {
  mkdirSync(programs, { recursive: true })
  const native = join(sources, 'bench/native')
  if (!existsSync(native)) throw new Error(`${native} is missing`)
  // An older bench/native does not know the variable: it takes its own packages anyway.
  const configure = ['--no-warn-unused-cli', '-S', native, '-B', programs, '-DCMAKE_BUILD_TYPE=Release']
  const targets = ['--target', 'verbs-pingpong', 'verbs-many']
  try {
    for (const args of [
      [...configure, `-DRDMAKIT_BENCH_PACKAGES=${join(packages, 'packages')}`],
      ['--build', programs, '--parallel', '2', ...targets],
    ])
      execFileSync('cmake', args, { stdio: ['ignore', 'ignore', quiet ? 'ignore' : 'inherit'] })
    return true
  } catch (failure) {
    if (!quiet) throw failure
    return false
  }
}
