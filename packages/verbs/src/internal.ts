/**
 * What the packages of rdmakit share and nobody else may rely on: it changes without notice. They depend on each other
 * in exactly one version.
 *
 * @internal
 */
export { onAbort } from './abort.js'
export { registrable } from './bytes.js'
export { CallbackScope } from './callback-scope.js'
export { type Deferred, deferred, within } from './deferred.js'
