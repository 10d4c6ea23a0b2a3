export type { ReconnectOptions } from './client/backoff.js'
export { type ClientRequestOptions, RingClient, type RingClientOptions } from './client/client.js'
export type { ClientState, ReconnectionOptions } from './client/reconnection.js'
export type { CloseOptions, RequestOptions } from './connection/call-options.js'
export { type RequestContext, type RequestHandler, RingConnection } from './connection/connection.js'
export type { LivenessOptions } from './connection/liveness.js'
export type { CloseReason, ConnectionState } from './connection/states.js'
export type { PollerStatistics, RingStatistics } from './connection/statistics.js'
export { Poller } from './polling/poller.js'
export { type PollerChoice, PollerGroup, type PollerGroupOptions } from './polling/poller-group.js'
export type { PollerMode, PollerOptions } from './polling/poller-options.js'
export * from './receiving/index.js'
export { RemoteError } from './requests/remote-error.js'
export { RingServer, type RingServerCounts, type RingServerOptions } from './server/server.js'
export * from './service/index.js'
export { acceptRing, refuseRing } from './setup/accept.js'
export {
  applicationData,
  isRingRequest,
  type RingRequest,
  ringRequest,
  type Session,
} from './setup/handshake.js'
export type { AcceptOptions, ConnectOptions, RingOptions } from './setup/options.js'
export * from './transfer/index.js'
