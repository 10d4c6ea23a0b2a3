import { closeSync, openSync, readFileSync, writeSync } from 'node:fs'

/** of AreaHeader::hazard, in packages/verbs/native/shm/mapping/layout.h */
const HAZARD_AT = 384

/** A key that no region has: slot 0xffff is never taken in a test. */
export const DEAD_KEY = 0xffff01

/** Where this process has the shared areas of its queue pairs over shm: both ends of a connection within it. */
export function sharedAreas(): number[] {
  const lines = readFileSync('/proc/self/maps', 'latin1').split('\n')
  return lines
    .filter((line) => line.includes('memfd:rdmakit-queue-pair'))
    .map((line) => Number.parseInt(line, 16))
}

/** Says that the peer of each of these queue pairs is at the memory of a key, or with 0 at none. */
export function holdMemory(areas: readonly number[], key: number): void {
  const word = Buffer.alloc(4)
  word.writeUInt32LE(key)
  const memory = openSync('/proc/self/mem', 'r+')
  // A queue pair that is gone has taken its area along.
  const there = new Set(sharedAreas())
  for (const area of areas) if (there.has(area)) writeSync(memory, word, 0, 4, area + HAZARD_AT)
  closeSync(memory)
}
