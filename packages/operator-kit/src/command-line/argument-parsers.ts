import { InvalidArgumentError } from 'commander'
import { EXIT, exitStatusOf } from './exit-status.js'

/** A parser of options and arguments; what it refuses (as wrong usage, whatever its class) is told with the option's name. */
export function argumentParser<Value>(parse: (text: string) => Value) {
  return (text: string): Value => {
    try {
      return parse(text)
    } catch (failure) {
      if (exitStatusOf(failure) === EXIT.usage)
        throw new InvalidArgumentError(`${(failure as Error).message}.`)
      throw failure
    }
  }
}

/** Options and arguments that are whole numbers in a range. @throws InvalidArgumentError, which names the option */
export function integerInRange(minimum: number, maximum: number) {
  return (text: string): number => {
    const value = Number(text)
    if (!/^\d+$/.test(text) || value < minimum || value > maximum)
      throw new InvalidArgumentError(`It is a whole number from ${minimum} to ${maximum}.`)
    return value
  }
}

/** The same of seconds, which may have a fraction. */
export function secondsInRange(minimum: number, maximum: number) {
  return (text: string): number => {
    const value = Number(text)
    if (!/^\d+(\.\d+)?$/.test(text) || value < minimum || value > maximum)
      throw new InvalidArgumentError(`It is a number of seconds from ${minimum} to ${maximum}.`)
    return value
  }
}

/**
 * Options that are the path of a file or folder. An empty one is what a script gives whose variable is not set, and must not
 * mean that there is none. @throws InvalidArgumentError
 */
export function pathArgument(text: string): string {
  if (text === '') throw new InvalidArgumentError('It is empty; name a path, or leave the option out.')
  return text
}
