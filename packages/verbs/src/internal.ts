/**
 * Exports for rdmakit's own packages only: they change without notice. The packages depend on each other in
 * exactly one version.
 *
 * @internal
 */
export { onAbort } from './base/abort.js'
export { copyOfBytes, integerInRange, registrable } from './base/arguments.js'
export { CallbackScope } from './base/callback-scope.js'
export { clearTimeout, performance, queueMicrotask, setImmediate, setTimeout } from './base/clock.js'
export {
  type Deferred,
  deferred,
  LONGEST_MS,
  milliseconds,
  millisecondsOrNone,
  within,
} from './base/deferred.js'
export { mayChange } from './memory/changing.js'
