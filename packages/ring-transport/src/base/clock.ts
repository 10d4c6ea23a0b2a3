// Time as the peer sees it. Tests put false clocks in the place of the globals (sinon, jest, vitest);
// heartbeats, deadlines and the posting at the end of a turn must still work.
import { performance as clock } from 'node:perf_hooks'

export { clearTimeout, setImmediate, setTimeout } from 'node:timers'

export const performance = { now: clock.now.bind(clock) }
export const queueMicrotask = globalThis.queueMicrotask
