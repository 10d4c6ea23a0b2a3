import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The version of Node-API that the addons are built for: package.json of those packages has it too (`binary`). */
export const NODE_API = 9

/** What a build leaves in a package's dist/build.json. */
interface Build {
  /** of the repository, abbreviated; with `+` where files differed from it */
  readonly commit?: string
}

/**
 * What `--version` prints, one line: `swap-server 0.1.0 (commit 0c0f29a1b2c3), Node-API 9, Node.js v22.12.0`.
 * @param file of the package, as `import.meta.url`
 */
export function versionOf(name: string, file: string): string {
  const home = packageOf(dirname(fileURLToPath(file)))
  const { version } = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8')) as { version: string }
  const { commit } = buildOf(home)
  const of = commit === undefined ? '' : ` (commit ${commit})`
  return `${name} ${version}${of}, Node-API ${NODE_API}, Node.js ${process.version}`
}

function packageOf(folder: string): string {
  if (existsSync(join(folder, 'package.json'))) return folder
  const above = dirname(folder)
  if (above === folder) throw new Error('the program is in no package')
  return packageOf(above)
}

/** Of a build without git nothing is known. */
function buildOf(home: string): Build {
  const file = join(home, 'dist', 'build.json')
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Build) : {}
}
