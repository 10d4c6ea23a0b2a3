import { readdirSync, readFileSync } from 'node:fs'
import { setImmediate as turn } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

/** bytes of JavaScript's heap that this process holds once its garbage is collected */
export async function heap(): Promise<number> {
  for (let i = 0; i < 3; i++) {
    collect()
    await turn()
  }
  return process.memoryUsage().heapUsed
}

/** bytes of JavaScript's heap and of its ArrayBuffers, once the garbage is collected that is found at once */
export function heapBytes(): number {
  collect()
  const { heapUsed, arrayBuffers } = process.memoryUsage()
  return heapUsed + arrayBuffers
}

/** bytes of memory that this process holds once its garbage is collected */
export async function residentBytes(): Promise<number> {
  // Closed memory is unmapped when its ArrayBuffer is collected, in a later turn.
  for (let i = 0; i < 3; i++) {
    collect()
    await turn()
  }
  return Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[1]) * 4096
}

/** How many this process holds. */
export const descriptors = (): number => readdirSync('/proc/self/fd').length
