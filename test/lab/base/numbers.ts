import { parseArgs } from 'node:util'
import { UsageError } from './errors.js'

/** Options with whole numbers from 1 on, each with its default. */
export function numbersOf<T extends Record<string, number>>(rest: readonly string[], defaults: T): T {
  return wholeNumbers(parseArgs({ args: [...rest], options: textsOf(defaults) }).values, defaults)
}

export const textsOf = (defaults: Record<string, number>) =>
  Object.fromEntries(Object.keys(defaults).map((name) => [name, { type: 'string' as const }]))

export function wholeNumbers<T extends Record<string, number>>(
  given: Record<string, unknown>,
  defaults: T,
): T {
  const numbers = Object.entries(given).map(([name, value]) => [name, Number(value)] as const)
  for (const [name, number] of numbers)
    if (!Number.isSafeInteger(number) || number < 1)
      throw new UsageError(`--${name} is a whole number from 1 on`)
  return { ...defaults, ...Object.fromEntries(numbers) }
}
