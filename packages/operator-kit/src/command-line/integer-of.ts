import { InvalidInputError } from './invalid-input-error.js'

/** @returns `value`, if it is a whole number in the range @throws InvalidInputError that says so of `what` */
export function integerOf(
  value: unknown,
  what: string,
  least: number,
  most: number = Number.MAX_SAFE_INTEGER,
): number {
  if (!Number.isSafeInteger(value) || (value as number) < least || (value as number) > most)
    throw new InvalidInputError(`${what} is not a whole number from ${least} to ${most}`)
  return value as number
}
