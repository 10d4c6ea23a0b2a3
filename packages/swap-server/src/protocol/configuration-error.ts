import { EXIT, type ReadFile, readOperatorFile } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'

/** A file that the operator wrote says something that cannot be. */
export class ConfigurationError extends UsageError {
  override readonly name = 'ConfigurationError'

  /** @internal how a program ends for it: `exitStatusOf` asks */
  get exitStatus(): number {
    return EXIT.configuration
  }
}

/** Like {@link readOperatorFile}. @throws ConfigurationError */
export function readConfigurationFile(path: string, what: string): ReadFile {
  try {
    return readOperatorFile(path, what)
  } catch (failure) {
    throw new ConfigurationError((failure as Error).message)
  }
}
