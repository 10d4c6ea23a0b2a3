import { existsSync, readFileSync } from 'node:fs'

/** What loop-delay.mjs has written to `path` by now, in words. */
export function longestStop(path: string): string {
  const written = existsSync(path) ? readFileSync(path, 'utf8').split(' ').map(Number) : []
  const [all = 0, computing = 0, asleep = 0] = written
  return `event loop stopped for ${all} ms at most, computed for ${computing} ms, slept in a stop for ${asleep} ms`
}
