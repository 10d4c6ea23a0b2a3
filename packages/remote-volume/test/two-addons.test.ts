import { createRequire } from 'node:module'
import { expect, test } from 'vitest'

interface Addon {
  createEngine(options: object, sink: (event: { type: string }) => void): object
  statistics(engine: object): { mappedSlabs: number; lanes: object[] }
  laneRequirements(): { arenaBytes: number }
  mapSlab(engine: object, slab: number, replicas: object[]): void
  attachQueue?(engine: object, lane: number): object
  close(engine: object, timeout: number): Promise<void>
}

const load = createRequire(import.meta.url)
const addonOf = (name: string, file: string) =>
  load(`../../${name}/build/Release/${file}.node`) as unknown as Addon

const options = (size: bigint) => ({
  size,
  slabSize: 1n << 20n,
  readOnly: false,
  operationTimeout: 4000,
  waitMode: 'adaptive',
  maxSpin: 50,
  prefault: false,
  ioFlusher: false,
  acknowledge: 'all',
  backup: { file: '', map: '', pages: 128, sparse: false },
  readAhead: 0,
  refillRate: 0n,
  pageMap: '',
  checksums: true,
  thin: false,
  pageChecksums: '',
  compress: 'none',
  pageLengths: '',
  slabMap: '',
  // Of NBD clients.
  exports: [{ name: '', description: '', offset: 0n, size: 0n, readOnly: false }],
  minimumBlockSize: 1,
  tls: { mode: 'off', certificates: '', sharedKeys: '', verifyPeer: false },
  handshakeTimeout: 1000,
  stallTimeout: 1000,
  maxHandshakes: 8,
  laneWait: 1000,
})

test('two addons with the same engine work beside each other, and neither takes an engine of the other', async () => {
  const ours = addonOf('remote-volume', 'remote_volume')
  const theirs = addonOf('nbd-client', 'nbd_client')
  expect(ours.laneRequirements()).toEqual(theirs.laneRequirements())
  const engine = ours.createEngine(options(4n << 20n), () => {})
  const another = theirs.createEngine(options(8n << 20n), () => {})

  ours.mapSlab(engine, 0, [{ server: 0, remoteKey: 1, address: 4096n }])
  expect(ours.statistics(engine)).toMatchObject({ mappedSlabs: 1, lanes: [] })
  expect(theirs.statistics(another)).toMatchObject({ mappedSlabs: 0, handshakes: 0 })
  expect(() => ours.statistics(another)).toThrow('expected an engine')
  expect(() => theirs.statistics(engine)).toThrow('expected an engine')
  expect(() => ours.attachQueue?.(engine, 0)).toThrow(expect.objectContaining({ code: 'EINVAL' }))

  await ours.close(engine, 1000)
  await theirs.close(another, 1000)
})
