// A checkout of rdmakit, and whether it is built.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, realpathSync } from 'node:fs'
import { join, resolve } from 'node:path'

/** The parts of a checkout that the benchmarks run, besides the sources of its native layers. */
const BUILT = [
  'packages/verbs/dist/index.js',
  'packages/verbs/build/Release/verbs.node',
  'packages/ring-transport/dist/index.js',
  'packages/ring-transport/build/Release/ring_transport.node',
  'packages/nbd-client/dist/cli.js',
  'packages/nbd-client/build/Release/nbd_client.node',
  'packages/swap-server/dist/cli.js',
] as const

/** Names of the top folder's package: the current one, and that of commits from before the program `rdmakit`. */
const NAMES: unknown[] = ['rdmakit-workspace', 'rdmakit']

/** The mistake in the given folder, and the remedy, in one line. */
export class CheckoutError extends Error {}

const PACKAGES = ['verbs', 'ring-transport', 'swap-server', 'remote-volume', 'nbd-client']

/**
 * @returns its absolute path
 * @throws CheckoutError when the folder is no checkout, or not built, or one whose packages are another's
 */
export function builtCheckout(folder: string): string {
  // npm runs scripts in the top folder, and says here where it was called.
  const root = resolve(process.env.INIT_CWD ?? '.', folder)
  if (!NAMES.includes(nameOf(root))) throw new CheckoutError(`--against ${folder}: not a checkout of rdmakit`)
  const remedy = `build it: cd ${folder} && npm ci && npm run build`
  const missing = BUILT.filter((file) => !existsSync(join(root, file)))
  if (missing.length > 0)
    throw new CheckoutError(`--against ${folder}: not built, ${missing.join(', ')} missing; ${remedy}`)
  // With a node_modules borrowed from another checkout, its scripts and its bundled programs hold that one's packages.
  // Not every checkout has each of them: an older one has fewer.
  for (const name of PACKAGES.filter((each) => existsSync(join(root, 'packages', each)))) {
    const linked = join(root, 'node_modules/@rdmakit', name)
    if (!existsSync(linked) || realpathSync(linked) !== realpathSync(join(root, 'packages', name)))
      throw new CheckoutError(
        `--against ${folder}: its node_modules/@rdmakit/${name} is not its own packages/${name}; ${remedy}`,
      )
  }
  return root
}

function nameOf(root: string): unknown {
  try {
    return JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).name
  } catch {
    return undefined
  }
}

/** The commit, for people: "1a2b3c4", or "1a2b3c4 with changes". */
export function commitOf(root: string): string {
  const git = (...args: string[]) =>
    execFileSync('git', ['-C', root, ...args], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim()
  try {
    const changes = git('status', '--porcelain', '--untracked-files=no')
    return `${git('rev-parse', '--short', 'HEAD')}${changes === '' ? '' : ' with changes'}`
  } catch {
    return 'unknown commit'
  }
}
