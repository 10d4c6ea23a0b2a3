/**
 * What nbd-client needs of a page server and nobody else may rely on: it changes without notice.
 *
 * @internal
 */
export { notifyMainProcess, notifyReady } from './service-manager.js'
export { unreached } from './unreached.js'
