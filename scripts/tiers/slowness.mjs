// How slow this machine is beside the one that the budgets are of. Most of what the parts do is to start programs, so
// that is the measure. A bound in seconds alone fails on a slow machine what has not changed.
import { spawnSync } from 'node:child_process'

/** Milliseconds that a start of Node takes on the machine of the budgets (docs/architecture.md, "few files"). */
const REFERENCE_MS = 70
const STARTS = 5
/** No machine is worth waiting for that is slower. */
const MOST = 3

/** @returns {number} how many times as long a start takes here, the median of some: 1 to 3 */
export function slowness() {
  const times = Array.from({ length: STARTS }, () => {
    const begin = performance.now()
    spawnSync(process.execPath, ['-e', '0'])
    return performance.now() - begin
  }).sort((a, b) => a - b)
  return Math.min(MOST, Math.max(1, times[Math.floor(STARTS / 2)] / REFERENCE_MS))
}
