export { type AcceptOfferOptions, type ChunkOptions, RingOffer } from './offer.js'
export type { TransmitOptions } from './outgoing.js'
export type { OnProgress } from './progress.js'
