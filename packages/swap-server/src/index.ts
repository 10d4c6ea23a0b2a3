export { type RemoteSlab, type SessionLimits, SwapServerError } from './client/server-replies.js'
export type { ListOptions, SessionIdentity, SessionOptions, SessionUse } from './client/session-options.js'
export { SwapServerSession } from './client/swap-server-session.js'
export { ConfigurationError } from './protocol/configuration-error.js'
export { type Key, readKeyFile } from './protocol/key-file.js'
export { meaningOfRefusal, type RefusedResume } from './protocol/refusal.js'
export { MOVES_NOTHING, type ServerRequestHandler } from './protocol/server-requests.js'
export {
  compareTakeOvers,
  INSTANCE_BYTES,
  NO_TAKE_OVER,
  nextTakeOver,
  type TakeOver,
} from './protocol/take-over-number.js'
export { type Actor, type AuditEvent, AuditLog } from './server/audit-log.js'
export type { Holding, HoldOutcome, LendingOptions } from './server/memory/lending.js'
export { SwapServer, type SwapServerOptions } from './server/server.js'
export type { ListeningOptions } from './server/server-listeners.js'
export { type Tenant, type TenantLimits, Tenants, type TenantsChange } from './server/tenants/tenants.js'
