import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/**
 * Collects what starting has left in this process's heap, and has V8 never again do so for having nothing else to do, as
 * it would some 8 s later: that takes as long as some 20 s of heartbeats, and the machine may be swapping by then. A heap
 * that has grown is still collected, at once: it is small.
 * @returns what collects it
 */
export function settleHeap(): () => void {
  // A process cannot have it without the flag, nor be sure of its own command line (v8.setFlagsFromString()).
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  collect()
  // What is collected while nothing happens is marked in small steps. Now none is under way.
  setFlagsFromString('--no-incremental-marking')
  return collect
}
