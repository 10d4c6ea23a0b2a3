export type { ReconnectOptions } from './client/backoff.js'
export {
  type ClientRequestOptions,
  type ClientState,
  RingClient,
  type RingClientOptions,
} from './client/client.js'
export { type BatchOptions, type RequestOptions, RingConnection } from './connection/connection.js'
export type { CloseOptions, CloseReason } from './connection/exchange.js'
export type { LivenessOptions } from './connection/liveness.js'
export type { ConnectionState } from './connection/states.js'
export type { PollerStatistics, RingStatistics } from './connection/statistics.js'
export { Poller, type PollerMode, type PollerOptions } from './polling/poller.js'
export { type PollerChoice, PollerGroup, type PollerGroupOptions } from './polling/poller-group.js'
export { RingBatch } from './receiving/batch.js'
export { RingMessage, type RingView } from './receiving/message.js'
export { RemoteError } from './requests/remote-error.js'
export type { RequestContext, RequestHandler } from './requests/responder.js'
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
