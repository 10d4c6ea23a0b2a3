import { UsageError } from '@rdmakit/verbs'

/** @internal `value`, if it is a whole number in the range. @throws UsageError naming what it is of */
export function integerInRange(name: string, value: number, least: number, most: number): number {
  if (!Number.isInteger(value) || value < least || value > most)
    throw new UsageError(`${name} must be a whole number from ${least} to ${most}, not ${value}`)
  return value
}
