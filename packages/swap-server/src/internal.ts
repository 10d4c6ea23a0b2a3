/**
 * Exports of the page server for nbd-client only: they change without notice.
 *
 * @internal
 */

export { explainUnreachable } from './client/unreachable.js'
export { notifyMainProcess, notifyReady } from './commands/service-manager.js'
export { type StatusColumn, statusTable } from './commands/status-table.js'
export { keyOf, tenantArgument } from './commands/tenant-argument.js'
