export { type RemoteSlab, type SessionLimits, SwapServerError } from './answers.js'
export { type Actor, type AuditEvent, AuditLog } from './audit.js'
export {
  type SessionIdentity,
  type SessionOptions,
  type SessionUse,
  SwapServerSession,
} from './client.js'
export { ConfigurationError } from './configuration-error.js'
export { type Key, readKeyFile } from './key-file.js'
export type { Holding, HoldOutcome, LendingOptions } from './lending.js'
export { meaningOfRefusal, type RefusedResume } from './refusal.js'
export { SwapServer, type SwapServerOptions } from './server.js'
export { MOVES_NOTHING, type ServerRequestHandler } from './server-requests.js'
export {
  compareTakeOvers,
  INSTANCE_BYTES,
  NO_TAKE_OVER,
  nextTakeOver,
  type TakeOver,
} from './take-over-number.js'
export { type Tenant, type TenantLimits, Tenants, type TenantsChange } from './tenants.js'
