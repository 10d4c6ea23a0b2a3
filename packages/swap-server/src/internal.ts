/**
 * What nbd-client needs of a page server and nobody else may rely on: it changes without notice.
 *
 * @internal
 */

export { explainUnreachable } from './client/unreachable.js'
export { notifyMainProcess, notifyReady } from './commands/service-manager.js'
