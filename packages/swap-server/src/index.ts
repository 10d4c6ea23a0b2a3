export {
  type RemoteSlab,
  type SessionIdentity,
  type SessionOptions,
  SwapServerError,
  SwapServerSession,
} from './client.js'
export { SwapServer, type SwapServerOptions } from './server.js'
export { formatSize, parseSize, parseSizeInUnits } from './size.js'
