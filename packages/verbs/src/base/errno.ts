import { constants } from 'node:os'

const NAMES = new Map<number, string>(Object.entries(constants.errno).map(([name, value]) => [value, name]))

/** The name of an errno value, e.g. `ECONNREFUSED` for 111. */
export function errnoName(value: number): string {
  return NAMES.get(Math.abs(value)) ?? `E${Math.abs(value)}`
}
