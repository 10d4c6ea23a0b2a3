import { argumentParser, InvalidInputError, nameOption } from '@rdmakit/operator-kit'
import { checkName, type Key, readKeyFile } from '../protocol/key-file.js'

/** Of `--tenant <name>`: an empty one must not mean the default tenant. @throws InvalidArgumentError */
export const tenantArgument = argumentParser((text: string): string => {
  try {
    return checkName(text, 'It')
  } catch (failure) {
    throw new InvalidInputError((failure as Error).message)
  }
})

/** The key in the file of `--key-file <path>`. @throws ConfigurationError */
export function keyOf(file: string): Key {
  try {
    return readKeyFile(file)
  } catch (failure) {
    throw nameOption('--key-file', failure)
  }
}
