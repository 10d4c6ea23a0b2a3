export { acceptRing, refuseRing } from './accept.js'
export type { ReconnectOptions } from './backoff.js'
export { RingBatch } from './batch.js'
export {
  type ClientRequestOptions,
  type ClientState,
  RingClient,
  type RingClientOptions,
} from './client.js'
export { type BatchOptions, type RequestOptions, RingConnection } from './connection.js'
export { RemoteError } from './errors.js'
export type { CloseOptions, CloseReason } from './exchange.js'
export { applicationData, isRingRequest, type RingRequest, ringRequest, type Session } from './handshake.js'
export type { LivenessOptions } from './liveness.js'
export { RingMessage, type RingView } from './message.js'
export type { AcceptOptions, ConnectOptions, RingOptions } from './options.js'
export { Poller, type PollerMode, type PollerOptions } from './poller.js'
export { type PollerChoice, PollerGroup, type PollerGroupOptions } from './poller-group.js'
export type { RequestContext, RequestHandler } from './responder.js'
export { RingServer, type RingServerCounts, type RingServerOptions } from './server.js'
export * from './service/index.js'
export type { ConnectionState } from './states.js'
export type { PollerStatistics, RingStatistics } from './statistics.js'
export * from './transfer/index.js'
