import { createRequire } from 'node:module'
import { VolumeEngine } from '../../src/engine/volume-engine.js'
import type { VolumeEngineOptions } from '../../src/engine/volume-engine-options.js'

// With the front in this process, which wants to know nothing.
const addon = createRequire(import.meta.url)('../../build/Release/remote_volume.node')

/** An engine to which no client comes. */
export function makeEngine(options: VolumeEngineOptions): VolumeEngine {
  return new VolumeEngine(addon, options, {})
}
