import { printable } from '../output/printable.js'
import { InvalidInputError } from './invalid-input-error.js'

const UNITS: Readonly<Record<string, number>> = { '': 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40 }

/**
 * Reads a size as operators write it: `4096`, `64M`, `1.5G`, `2GiB`. Units are powers of 1024.
 * @param what names the option in the error
 * @returns bytes, a whole number from 1
 * @throws InvalidInputError that says what is wrong with it
 */
export function parseSize(text: string, what: string): number {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?$/i.exec(text.trim()) ?? []
  if (number === undefined || unit === undefined)
    throw new InvalidInputError(
      `${what} "${shown(text)}" is not a size; write bytes or a number with K, M, G or T`,
    )
  const bytes = Number(number) * (UNITS[unit.toUpperCase()] ?? Number.NaN)
  if (!Number.isSafeInteger(bytes))
    throw new InvalidInputError(`${what} "${shown(text)}" is not a whole number of bytes below 8 PiB`)
  if (bytes === 0) throw new InvalidInputError(`${what} must be above 0`)
  return bytes
}

/** Also of a file, where it may be anything. */
function shown(text: string): string {
  return printable(text.length > 32 ? `${text.slice(0, 32)}...` : text)
}

/** Like {@link parseSize}, for sizes that must be a multiple of `unit` bytes. */
export function parseSizeInUnits(text: string, what: string, unit: number): number {
  const bytes = parseSize(text, what)
  if (bytes % unit !== 0)
    throw new InvalidInputError(
      `${what} "${text}" is ${bytes} bytes, which is not a multiple of ${unit}; the next one up is ${Math.ceil(bytes / unit) * unit}`,
    )
  return bytes
}

/** A size for people: `64 MiB`, `1.5 GiB`. */
export function formatSize(bytes: number): string {
  const steps = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB']
  let value = bytes
  let step = 0
  while (value >= 1024 && step < steps.length - 1) {
    value /= 1024
    step++
  }
  return `${Number.isInteger(value) ? value : value.toFixed(1)} ${steps[step]}`
}
