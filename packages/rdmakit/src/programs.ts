import type * as nbdClient from '../../nbd-client/dist/main.js'
import type * as swapServer from '../../swap-server/dist/main.js'

/** What a program is, for another one that runs its command lines. */
interface Programs {
  'swap-server': typeof swapServer
  'nbd-client': typeof nbdClient
}

/** Loads a program's dist/cli.js, which runs nothing then: of the package that this one depends on, or of the clone that it is in. */
export async function load<Name extends keyof Programs>(name: Name): Promise<Programs[Name]> {
  Reflect.set(globalThis, Symbol.for('rdmakit'), true)
  // Neither package exports it to others. Their index is in the same folder.
  return import(new URL('cli.js', import.meta.resolve(`@rdmakit/${name}`)).href)
}
