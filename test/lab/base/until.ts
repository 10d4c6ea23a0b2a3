import { DeadlineError } from './errors.js'

const pause = 100

/** Asks until the answer is yes. */
export async function until(what: string, deadlineMs: number, ask: () => boolean | Promise<boolean>) {
  const deadline = Date.now() + deadlineMs
  while (!(await ask())) {
    if (Date.now() > deadline) throw new DeadlineError(`${what}: not within ${deadlineMs / 1000} s`)
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}
