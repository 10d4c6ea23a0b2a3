import { argumentParser, InvalidInputError } from '@rdmakit/operator-kit'
import { checkName } from '../protocol/key-file.js'

/** Of `--tenant <name>`: an empty one must not mean the default tenant. @throws InvalidArgumentError */
export const tenantArgument = argumentParser((text: string): string => {
  try {
    return checkName(text, 'It')
  } catch (failure) {
    throw new InvalidInputError((failure as Error).message)
  }
})
