import type { Impairment } from '@rdmakit/operator-kit'
import type { Logger } from 'pino'
import type { control } from '../protocol/messages.js'
import type { Actor, AuditEvent } from './audit-log.js'
import type { Lending } from './memory/lending.js'
import type { Bandwidth } from './tenants/bandwidth.js'
import type { Tenant, Tenants } from './tenants/tenants.js'

/** The state shared by all sessions of a server. */
export interface SessionHost {
  readonly epoch: string
  readonly lending: Lending
  readonly bandwidth: Bandwidth
  readonly sessionTimeoutMs: number
  /** at most, if there are places for them */
  readonly maxSessions: number
  readonly log: Logger
  readonly maxDataConnections: number
  readonly tenants: Tenants
  /** bytes that a tenant's control connections may take together */
  readonly controlMemory: number
  /** milliseconds that a session may linger at most */
  readonly maxLingerMs: number
  /** Why no new sessions are opened; undefined: they are. */
  impairment(): Impairment | undefined
  /** Returns the state that `asking` may see; undefined: a tenant that no longer exists. */
  query(asking: Tenant | undefined): control.QueryReply.$Properties
  record(who: Actor, event: AuditEvent): void
  /** A request was answered. */
  answered(request: string, seconds: number): void
}
