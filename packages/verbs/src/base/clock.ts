// Time as the peer sees it. Tests put false clocks in the place of the globals (sinon, jest, vitest);
// deadlines, heartbeats, the posting at the end of a turn and the report of a failure must still work.
import { performance as clock } from 'node:perf_hooks'

export { clearImmediate, clearTimeout, setImmediate, setTimeout } from 'node:timers'

/** @internal */
export const performance = { now: clock.now.bind(clock) }
/** @internal */
export const queueMicrotask = globalThis.queueMicrotask
