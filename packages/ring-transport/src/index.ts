export { acceptRing, refuseRing } from './accept.js'
export { RingBatch } from './batch.js'
export {
  type BatchOptions,
  type CloseOptions,
  type CloseReason,
  type RequestOptions,
  RingConnection,
} from './connection.js'
export { RemoteError } from './errors.js'
export { applicationData, isRingRequest } from './handshake.js'
export { RingMessage } from './message.js'
export type { AcceptOptions, ConnectOptions, RingOptions } from './options.js'
export { Poller, type PollerMode, type PollerOptions } from './poller.js'
export type { RequestHandler } from './responder.js'
export { RingServer, type RingServerOptions } from './server.js'
export * from './service/index.js'
