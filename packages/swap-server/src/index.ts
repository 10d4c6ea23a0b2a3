export { type Actor, type AuditEvent, AuditLog } from './audit.js'
export {
  type RemoteSlab,
  type SessionIdentity,
  type SessionLimits,
  type SessionOptions,
  type SessionUse,
  SwapServerError,
  SwapServerSession,
} from './client.js'
export {
  type ControlRoutes,
  ControlSocket,
  callControlSocket,
  type RunningProgram,
  runningPrograms,
  runtimeDirectory,
} from './control-socket.js'
export { EXIT, ExitError, exitStatusOf, withExitStatus } from './exit-status.js'
export type { Holding, HoldOutcome, LendingOptions } from './lending.js'
export { MetricsEndpoint, parseAddress } from './metrics-endpoint.js'
export { ConfigurationError, type Key, readKeyFile } from './secret-file.js'
export { SwapServer, type SwapServerOptions } from './server.js'
export { MOVES_NOTHING, type ServerRequestHandler } from './server-requests.js'
export { notifyReady } from './service-manager.js'
export { formatSize, parseSize, parseSizeInUnits } from './size.js'
export { type Tenant, type TenantLimits, Tenants, type TenantsChange } from './tenants.js'
