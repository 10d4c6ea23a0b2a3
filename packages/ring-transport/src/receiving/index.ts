export { RingBatch } from './batch.js'
export type { BatchOptions } from './inbox.js'
export { RingMessage, type RingView } from './message.js'
