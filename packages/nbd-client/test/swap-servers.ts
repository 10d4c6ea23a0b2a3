import { SwapServer, type SwapServerOptions } from '@rdmakit/swap-server'
import { onTestFinished } from 'vitest'
import { Volume } from '../src/volume.js'
import type { VolumeOptions } from '../src/volume-options.js'
import { MIB } from './fixture.js'

let sockets = 0

/** Where nobody listens yet. */
export function socketAddress(): string {
  return `shm:///tmp/rdmakit-test-${process.pid}-${++sockets}.sock`
}

/** A swap-server in this process that lends `slabs` of 1 MiB until the test is over. */
export async function serve(
  slabs: number,
  uri = socketAddress(),
  options: Partial<SwapServerOptions> = {},
): Promise<{ server: SwapServer; uri: string }> {
  const server = new SwapServer({ memory: slabs * MIB, slabSize: MIB, ...options })
  onTestFinished(() => server.close())
  return { server, uri: await server.listen(uri) }
}

/** A volume on these servers; the test closes it. */
export function openVolume(
  uris: readonly string[],
  options: Partial<VolumeOptions> & Pick<VolumeOptions, 'size'>,
): Promise<Volume> {
  return Volume.open({ servers: uris.map((uri) => [uri]), lanes: 1, ...options })
}
