// Checks the fields of a JSON file. Each function throws an Error that says what is wrong with its field.

export function record(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new Error(`${what} is not an object`)
  return value as Record<string, unknown>
}

/** A name with a typing error in it is worth showing; in a damaged file anything else may be a token. */
const SHOWN_FIELD = /^[A-Za-z]{1,20}$/

/** A missing field could mean an unused volume, for example, so no field may hide behind an unknown name. */
export function only(value: Record<string, unknown>, what: string, names: readonly string[]): void {
  const other = Object.keys(value).find((name) => !names.includes(name))
  if (other !== undefined)
    throw new Error(`${what} has a field ${SHOWN_FIELD.test(other) ? `"${other}" ` : ''}that is unknown`)
}

export function list(value: unknown, what: string): unknown[] {
  if (!Array.isArray(value) || value.length === 0) throw new Error(`${what} is not a list, or empty`)
  return value
}

export function word(value: unknown, what: string): string {
  if (typeof value !== 'string' || value === '') throw new Error(`${what} is missing`)
  return value
}

export function flag(value: unknown, what: string): boolean {
  if (value !== undefined && typeof value !== 'boolean') throw new Error(`${what} is neither true nor false`)
  return value === true
}

export function multiple(value: number, unit: number, what: string): number {
  if (value % unit !== 0) throw new Error(`${what} is not a multiple of ${unit}`)
  return value
}

export function powerOfTwo(value: number, what: string): number {
  if (!Number.isInteger(Math.log2(value))) throw new Error(`${what} is not a power of two`)
  return value
}
