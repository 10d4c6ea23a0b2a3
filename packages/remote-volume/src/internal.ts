// Exports for nbd-client only.
export { addHistograms, countOf, histogramSince, percentile } from './engine/histogram.js'
export type { NativeEngine, NativeHistogram, NativeStatistics } from './engine/volume-addon.js'
export { VolumeServer } from './servers/volume-server.js'
export { endKept } from './take-over/end-kept.js'
export { flag, only, record, word } from './take-over/json-fields.js'
export { formatKept, KEPT_FIELDS, parseKept } from './take-over/kept-volume.js'
export { LaneConnector } from './volume/lane-connector.js'
