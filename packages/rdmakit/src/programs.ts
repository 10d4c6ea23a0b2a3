import type * as nbdClient from '../../nbd-client/dist/program.js'
import type * as swapServer from '../../swap-server/dist/program.js'

/** What a program is, for another one that runs its command lines. */
interface Programs {
  'swap-server': typeof swapServer
  'nbd-client': typeof nbdClient
}

/** Loads a program's dist/command.js: of the package that this one depends on, or of the clone that it is in. */
export async function load<Name extends keyof Programs>(name: Name): Promise<Programs[Name]> {
  // Neither package exports it to others. Their index is in the same folder.
  return import(new URL('command.js', import.meta.resolve(`@rdmakit/${name}`)).href)
}
