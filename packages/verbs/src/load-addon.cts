// Finds the native addon of a package: one built from source in the package's own folder, or the prebuilt one of the
// package for this platform.
import fs = require('node:fs')
import path = require('node:path')

/** npm installs the one whose `libc` is the system's; other package managers may install both. */
const platform = `@rdmakit/addons-${process.platform}-${process.arch}`
const PREBUILT = [platform, `${platform}-musl`]

/** By its path: npx would ask the registry for a package of the program's name where it does not find the program. */
const BUILDER = path.join(__dirname, '..', 'build-addons.mjs')
const REMEDY = `run "node ${BUILDER}" in the folder whose node_modules has the package (in a clone: "npm run build")`

function isMissing(failure: NodeJS.ErrnoException): boolean {
  return failure.code === 'MODULE_NOT_FOUND'
}

function firstLine(failure: Error): string {
  return failure.message.split('\n')[0] ?? ''
}

/** What to do, said by whoever knows it best: the addon, the dynamic linker, or that nothing is there. */
function explain(owner: string, failures: NodeJS.ErrnoException[]): Error {
  const what = `${owner}: its native addon could not be loaded`
  const refused = failures.find(({ code }) => code === 'EOPNOTSUPP')
  if (refused !== undefined)
    return Object.assign(new Error(`${what}: ${refused.message}`, { cause: refused }), { code: refused.code })
  const broken = failures.find((failure) => !isMissing(failure))
  if (broken !== undefined)
    return new Error(`${what} (${firstLine(broken)}); to build it from source, ${REMEDY}`, { cause: broken })
  return Object.assign(
    new Error(
      `${what}: neither ${platform} is installed nor was it built from source. npm leaves the package out with ` +
        '--omit=optional, and where node_modules or the lock file comes from another platform: install again without. ' +
        `Where there is none for this platform, build the addon from source: ${REMEDY}`,
      { cause: failures[0] },
    ),
    { code: 'MODULE_NOT_FOUND' },
  )
}

/**
 * @param owner the package's name, for messages
 * @param folder the package's folder
 * @param name the addon's file, without .node
 * @throws Error that says what to do; `code` is `MODULE_NOT_FOUND` where there is no addon, `EOPNOTSUPP` where the addon
 * is there and refuses this process
 */
function loadAddon(owner: string, folder: string, name: string): unknown {
  const built = path.join(folder, 'build', 'Release', `${name}.node`)
  const failures: NodeJS.ErrnoException[] = []
  for (const place of fs.existsSync(built) ? [built] : PREBUILT.map((home) => `${home}/${name}.node`))
    try {
      return require(place)
    } catch (failure) {
      failures.push(failure as NodeJS.ErrnoException)
    }
  throw explain(owner, failures)
}

export = loadAddon
