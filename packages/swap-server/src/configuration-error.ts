import { UsageError } from '@rdmakit/verbs'
import { EXIT } from './exit-status.js'
import { type ReadFile, readOperatorFile } from './operator-file.js'

/** A file that the operator wrote says something that cannot be. */
export class ConfigurationError extends UsageError {
  override readonly name = 'ConfigurationError'

  /** @internal how a program ends for it: `exitStatusOf` asks */
  get exitStatus(): number {
    return EXIT.configuration
  }
}

/** As {@link readOperatorFile}. @throws ConfigurationError */
export function readConfigurationFile(path: string, what: string): ReadFile {
  try {
    return readOperatorFile(path, what)
  } catch (failure) {
    throw new ConfigurationError((failure as Error).message)
  }
}
