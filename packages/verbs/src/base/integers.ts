import { UsageError } from './errors.js'

/** @internal `value`, if it is a whole number from `least` to `most` */
export function integerInRange(name: string, value: number, least = 0, most = 0xffffffff): number {
  if (!Number.isSafeInteger(value) || value < least || value > most)
    throw new UsageError(`${name} must be a whole number from ${least} to ${most}, not ${value}`)
  return value
}

/** @internal `value`, if it has at most 64 bits and no sign */
export function word(name: string, value: bigint): bigint {
  if (value < 0n || value >= 2n ** 64n)
    throw new UsageError(`${name} has 64 bits without a sign, not ${value}`)
  return value
}
