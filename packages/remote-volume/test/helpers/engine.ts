import { createRequire } from 'node:module'
import { VolumeEngine } from '../../src/engine/volume-engine.js'
import type { VolumeEngineOptions } from '../../src/engine/volume-engine-options.js'

// This package has no addon of its own; that of nbd-client compiles the volume's sources in.
const addon = createRequire(import.meta.url)('@rdmakit/nbd-client/addon')

/** What the front of nbd-client wants to know. */
const FRONT = {
  exports: [{ name: '', description: '', offset: 0n, size: 0n, readOnly: false }],
  minimumBlockSize: 1,
  tls: { mode: 'off', certificates: '', sharedKeys: '', verifyPeer: false },
  handshakeTimeout: 10_000,
  maxHandshakes: 16,
  stallTimeout: 30_000,
  laneWait: 2_000,
}

/** An engine to which no client comes. */
export function makeEngine(options: VolumeEngineOptions): VolumeEngine {
  return new VolumeEngine(addon, options, FRONT)
}
