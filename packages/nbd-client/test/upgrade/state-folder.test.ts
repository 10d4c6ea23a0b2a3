import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { BlockEngine } from '../../src/engine/block-engine.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { formatVolume, type KeptVolume, parseVolume } from '../../src/upgrade/volume-json.js'
import { MIB } from '../helpers/fixture.js'

const STATE_FOLDER = new URL('../../dist/upgrade/state-folder.js', import.meta.url).href
const KEPT_VOLUME = new URL('../../dist/upgrade/volume-json.js', import.meta.url).href

const VOLUME: KeptVolume = {
  size: 64 * MIB,
  slabSize: MIB,
  replicas: 2,
  servers: [0, 3].map((index) => ({
    index,
    uris: [`rdma://10.0.0.${index}:7471`],
    identity: { epoch: '0123456789abcdef', session: 2 ** 47 + index, token: new Uint8Array(16).fill(index) },
    linger: 300_000,
  })),
  device: { front: 'nbd', index: 3, identifier: 'rdmakit-0011223344556677', connections: 2 },
}

const { device: _, ...UNUSED } = VOLUME

let path: string
let folder: StateFolder

beforeEach(() => {
  path = join(mkdtempSync(join(tmpdir(), 'nbd-state-')), 'volume')
  folder = StateFolder.open(path)
})

afterEach(() => {
  folder.close()
  rmSync(join(path, '..'), { recursive: true, force: true })
})

describe('a state folder', () => {
  it('is made for its owner alone, and holds nothing at first', () => {
    expect(statSync(path).mode & 0o777).toBe(0o700)
    expect(folder.read()).toBeUndefined()
  })

  it('goes, when nothing came to be, if this process made it', () => {
    folder.abandon()
    expect(existsSync(path)).toBe(false)
    folder.close()
    mkdirSync(path, { mode: 0o700 })
    folder = StateFolder.open(path)
    folder.write(VOLUME)
    // Processes died that were making them.
    for (const map of [folder.pageMap, folder.pageChecksums, folder.backupMap])
      writeFileSync(`${map}.new`, '')
    folder.abandon()
    expect(readdirSync(path)).toEqual(['lock'])
  })

  it('gives back what was written, and forgets it when it is cleared', () => {
    folder.write(VOLUME)
    expect(folder.read()).toEqual(VOLUME)
    expect(statSync(join(path, 'volume.json')).mode & 0o777).toBe(0o600)
    folder.write(UNUSED)
    expect(folder.read()).toEqual(UNUSED)
    folder.clear()
    expect(folder.read()).toBeUndefined()
  })

  it('writes to no file that a link leads to', () => {
    const elsewhere = join(path, '..', 'elsewhere')
    writeFileSync(elsewhere, 'something')
    symlinkSync(elsewhere, join(path, 'volume.json.new'))
    folder.write(VOLUME)
    expect(folder.read()).toEqual(VOLUME)
    expect(readFileSync(elsewhere, 'utf8')).toBe('something')
  })

  it('says of compressed pages what a program that knows nothing of them cannot read', () => {
    folder.write({ ...VOLUME, compressed: true })
    expect(folder.read()).toEqual({ ...VOLUME, compressed: true })
    expect(JSON.parse(formatVolume({ ...VOLUME, compressed: true })).version).toBe(2)
    expect(JSON.parse(formatVolume(VOLUME)).version).toBe(1)
  })

  it('says in which boot an export was served', () => {
    const served = { ...UNUSED, served: true, boot: 'd9131f2e-51ff-49f8-9810-e1f1d5710393' }
    folder.write(served)
    expect(folder.read()).toEqual(served)
    expect(Math.abs(folder.written - Date.now())).toBeLessThan(3_600_000)
  })

  it('is nobody else’s while it is open', () => {
    expect(() => StateFolder.open(path)).toThrow(/in use by another nbd-client/)
    folder.close()
    folder = StateFolder.open(path)
  })

  it('is not taken with the lock of another', () => {
    const other = StateFolder.open(join(path, '..', 'other'))
    expect(() => StateFolder.inherit(path, other.lock)).toThrow(/is not the folder of the process/)
    expect(StateFolder.inherit(other.path, other.lock).lock).toBe(other.lock)
    other.close()
  })

  it('has the old volume.json when there is no room for a new one', () => {
    folder.write(VOLUME)
    const servers = Array.from({ length: 20 }, (_, index) => ({ ...VOLUME.servers[0], index }))
    const program = `
      const { StateFolder } = await import(${JSON.stringify(STATE_FOLDER)})
      const { parseVolume } = await import(${JSON.stringify(KEPT_VOLUME)})
      const text = process.env.VOLUME
      try {
        StateFolder.open(process.argv[1]).write(parseVolume(text))
      } catch (failure) {
        console.log(failure.code)
      }`
    folder.close()
    // A file of 1024 bytes at most: the first write(2) is a short one, as on a file system that is nearly full.
    const limited = spawnSync(
      'bash',
      ['-c', 'ulimit -f 1; exec "$@"', '-', process.execPath, '--input-type=module', '-e', program, path],
      {
        encoding: 'utf8',
        env: { ...process.env, VOLUME: formatVolume({ ...VOLUME, servers } as KeptVolume) },
      },
    )
    expect(limited).toMatchObject({ stdout: 'EFBIG\n', status: 0 })
    folder = StateFolder.open(path)
    expect(folder.read()).toEqual(VOLUME)
    expect(readdirSync(path).sort()).toEqual(['lock', 'volume.json'])
  })

  it('is refused when others may look into it', () => {
    folder.close()
    chmodSync(path, 0o755)
    expect(() => StateFolder.open(path)).toThrow(/mode 0700/)
    chmodSync(path, 0o700)
    folder = StateFolder.open(path)
  })

  it('names the file and the way out when volume.json cannot be used', () => {
    writeFileSync(join(path, 'volume.json'), '{"vers')
    expect(() => folder.read()).toThrow(
      /volume\.json cannot be used: it is truncated.*remove the folder's files/,
    )
  })
})

/** volume.json, as far as the cases change it. */
interface Written {
  version: number
  size: number
  slabSize: number
  replicas: number
  served: unknown
  connecting: string
  servers: [Server, Server] | []
  device: { identifier: string; front?: string }
}
interface Server {
  index: number
  uris: string[]
  identity: { token: string }
}

describe('volume.json', () => {
  const change = (edit: (volume: Written) => void) => {
    const value = JSON.parse(formatVolume(VOLUME))
    edit(value)
    return JSON.stringify(value)
  }

  it('names the driver of a device only where older versions would not know it', () => {
    const device = {
      front: 'ublk',
      index: 3,
      identifier: 'rdmakit-0011223344556677',
      connections: 2,
    } as const
    expect(JSON.parse(formatVolume(VOLUME)).device).not.toHaveProperty('front')
    expect(JSON.parse(formatVolume({ ...VOLUME, device })).device).toHaveProperty('front', 'ublk')
    for (const volume of [VOLUME, { ...VOLUME, device }])
      expect(parseVolume(formatVolume(volume))).toEqual(volume)
  })

  it.each([
    ['truncated anywhere', formatVolume(VOLUME).slice(0, -20), /truncated/],
    ['no object', '[]', /it is not an object/],
    [
      'of another version',
      change((volume) => (volume.version = 3)),
      /has version 3, .* reads versions 1 and 2/,
    ],
    ['of another program', '{"name":"x"}', /has version undefined/],
    ['without servers', change((volume) => (volume.servers = [])), /servers is not a list, or empty/],
    [
      'with two of one index',
      change((volume) => ((volume.servers[1] as Server).index = 0)),
      /the same index/,
    ],
    ['with a bad token', change((volume) => ((volume.servers[0] as Server).identity.token = 'ab')), /token/],
    ['with four replicas', change((volume) => (volume.replicas = 4)), /replicas/],
    ['with an index out of range', change((volume) => ((volume.servers[0] as Server).index = 1024)), /index/],
    ['with a bad device', change((volume) => (volume.device.identifier = '')), /device.identifier/],
    ['with a driver that is none', change((volume) => (volume.device.front = 'loop')), /device.front/],
    ['with half a page', change((volume) => (volume.size += 2048)), /size is not a multiple of 4096/],
    ['with odd slabs', change((volume) => (volume.slabSize += 4096)), /slabSize is not a power of two/],
    ['with an address that is none', change((volume) => (volume.servers[0] as Server).uris.push('x')), /"x"/],
    ['with a flag that is none', change((volume) => (volume.served = 1)), /served is neither true nor false/],
    [
      'with the boot of no export',
      formatVolume({ ...VOLUME, boot: 'd9131f2e-51ff-49f8-9810-e1f1d5710393' }),
      /the boot ID of an export, but no export/,
    ],
    [
      'with a boot that is none',
      formatVolume({ ...UNUSED, served: true, boot: 'yesterday' }),
      /boot is not a boot ID/,
    ],
    [
      'of an export and of a device',
      change((volume) => (volume.served = true)),
      /more than one of an export/,
    ],
    [
      'of a device and of one that is being made',
      change((volume) => (volume.connecting = 'rdmakit-0011223344556677')),
      /a device and a device being created/,
    ],
    [
      'with a bad name of what is being made',
      formatVolume({ ...UNUSED, connecting: '' }),
      /connecting is missing/,
    ],
    [
      'with a name that is mistaken',
      formatVolume(VOLUME).replace('"device"', '"devise"'),
      /it has a field "devise" that is unknown/,
    ],
  ])('%s is refused', (_, text, reason) => {
    expect(() => parseVolume(text)).toThrow(reason)
  })
})

describe('the slab map in a file', () => {
  const place = (server: number) => ({ server, remoteKey: 7 + server, address: 4096n * BigInt(server + 1) })
  const open = (size = 4 * MIB) =>
    new BlockEngine({
      size,
      slabSize: MIB,
      pageMap: folder.pageMap,
      slabMap: folder.slabMap,
    })

  it('has each replica, each drop and each failure for the next engine', async () => {
    const first = open()
    first.mapSlab(0, place(0), place(1))
    first.mapSlab(1, place(0))
    first.mapSlab(2, place(1))
    first.addReplica(1, place(2))
    first.failServer(1)
    first.dropReplica(2, 1)
    expect(() => open()).toThrow(expect.objectContaining({ code: 'EBUSY' }))
    await first.close()
    await using second = open()
    expect(second.lookUpSlab(0)).toEqual([
      { ...place(0), live: true, leaving: false },
      { ...place(1), live: true, leaving: false },
    ])
    expect(second.lookUpSlab(1)).toEqual([
      { ...place(0), live: true, leaving: false },
      { ...place(2), live: false, leaving: false },
    ])
    expect(second.lookUpSlab(2)).toEqual([])
    expect(second.lookUpSlab(3)).toBeUndefined()
    expect(second.statistics().failedServers).toEqual([1])
  })

  it.each([
    ['of another size', 'size'],
    ['damaged', 'damage'],
    ['that is none', 'foreign'],
  ])('%s is refused', async (_, kind) => {
    const first = open()
    first.mapSlab(0, place(0))
    await first.close()
    if (kind === 'damage') {
      const bytes = Buffer.alloc(4096 + 4 * 120, 0xff)
      writeFileSync(folder.slabMap, bytes)
    }
    if (kind === 'foreign') writeFileSync(folder.slabMap, 'something else')
    expect(() => open(kind === 'size' ? 8 * MIB : 4 * MIB)).toThrow(
      expect.objectContaining({ code: 'EINVAL' }),
    )
  })
})
