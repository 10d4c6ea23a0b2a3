// Other versions of Node.js, as npm's package `node` brings them.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, realpathSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
/** What `newest` means: pinned, so that a run can be repeated. */
const NEWEST = '26'
/** The oldest that package.json's `engines` allows. */
export const LOWEST = '20.19'

/**
 * Installs it into build/node-VERSION, once.
 * @param version a version, or `newest`
 * @returns where its program is
 */
export function installNode(version) {
  const wanted = version === 'newest' ? NEWEST : version
  const folder = join(top, 'build', `node-${wanted}`)
  const program = join(folder, 'node_modules', '.bin', 'node')
  if (!existsSync(program)) {
    mkdirSync(folder, { recursive: true })
    const words = ['install', '--no-save', '--no-audit', '--no-fund', '--prefix', folder, `node@${wanted}`]
    const { status } = spawnSync('npm', words, { stdio: 'inherit' })
    if (status !== 0) throw new Error(`npm does not install node@${wanted}`)
  }
  return realpathSync(program)
}
