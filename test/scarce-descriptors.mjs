// Calls something with 0, 1, 2, … free file descriptors until it succeeds. Used by the programs of scarce-descriptors.ts.
import { closeSync, openSync, readdirSync } from 'node:fs'

export const openDescriptors = () => readdirSync('/proc/self/fd').length
const turn = () => new Promise((resolve) => setImmediate(resolve))
const DEADLINE_MS = 20_000
/** more than anything here takes */
const MOST = 64

/** Opens as many as the limit leaves. */
function fill() {
  const filling = []
  for (;;) {
    try {
      filling.push(openSync('/dev/null', 'r'))
    } catch (failure) {
      if (failure.code !== 'EMFILE') throw failure
      return filling
    }
  }
}

/** How many are still open that `before` does not count, once what closes them on other threads has had its time. */
export async function leftOpen(before) {
  const deadline = performance.now() + DEADLINE_MS
  while (openDescriptors() > before && performance.now() < deadline) {
    globalThis.gc?.()
    await turn()
  }
  return openDescriptors() - before
}

/**
 * @param make what takes descriptors; its result is closed by `drop`
 * @returns for each number of free descriptors that was too small, the error's code and how many descriptors are left open
 */
export async function withFewDescriptors(make, drop) {
  // What is opened once and stays (modules, the event loop's own) is not counted.
  await drop(await make())
  let before = openDescriptors()
  const failures = []
  for (let free = 0; free < MOST; free++) {
    const filling = fill()
    for (const descriptor of filling.splice(filling.length - free)) closeSync(descriptor)
    let made
    let failure
    try {
      made = await make()
    } catch (thrown) {
      failure = thrown
    } finally {
      for (const descriptor of filling) closeSync(descriptor)
    }
    if (failure === undefined) {
      await drop(made)
      return failures
    }
    const left = await leftOpen(before)
    failures.push({ code: failure.code, left: Math.max(0, left) })
    // What the first one had may have been closed only now, on another thread: the next ones are measured by fewer.
    before += Math.min(0, left)
    // Those that follow would count it again.
    if (failures.at(-1).left > 0) return failures
  }
  throw new Error(`${MOST} descriptors are too few`)
}
