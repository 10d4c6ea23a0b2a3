import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { MIB } from '../helpers/fixture.js'

/** The calls to the file system, in order: a power cut keeps synced data, and loses data that were only written. */
const calls: string[] = []
/** makes the next call of that name fail */
let failing: string | undefined

vi.mock('node:fs', async (original) => {
  const fs = await original<typeof import('node:fs')>()
  const names = new Map<number, string>()
  const note = (call: string, name: string) => {
    calls.push(`${call} ${name}`)
    if (failing === call) throw Object.assign(new Error(`${call} fails`), { code: 'EIO' })
  }
  return {
    ...fs,
    openSync: (...given: Parameters<typeof fs.openSync>) => {
      const descriptor = fs.openSync(...given)
      names.set(descriptor, basename(String(given[0])))
      return descriptor
    },
    writeFileSync: (...given: Parameters<typeof fs.writeFileSync>) => {
      note('write', names.get(given[0] as number) ?? String(given[0]))
      fs.writeFileSync(...given)
    },
    fsyncSync: (descriptor: number) => {
      note('fsync', names.get(descriptor) ?? String(descriptor))
      fs.fsyncSync(descriptor)
    },
    renameSync: (from: string, to: string) => {
      note('rename', `${basename(from)} ${basename(to)}`)
      fs.renameSync(from, to)
    },
  }
})

const VOLUME = {
  size: 64 * MIB,
  slabSize: MIB,
  replicas: 1,
  servers: [
    {
      index: 0,
      uris: ['rdma://10.0.0.1:7471'],
      identity: { epoch: '0123456789abcdef', session: 7, token: new Uint8Array(16) },
      linger: 0,
    },
  ],
}

let path: string
let folder: StateFolder

beforeEach(() => {
  path = join(mkdtempSync(join(tmpdir(), 'nbd-sync-')), 'volume')
  folder = StateFolder.open(path)
  calls.length = 0
})

afterEach(() => {
  failing = undefined
  folder.close()
  rmSync(join(path, '..'), { recursive: true, force: true })
})

describe('volume.json', () => {
  it('is on the disk before it has its name, and has its name there before anybody goes by it', () => {
    folder.write(VOLUME)
    expect(calls).toEqual([
      'write volume.json.new',
      'fsync volume.json.new',
      'rename volume.json.new volume.json',
      'fsync volume',
    ])
  })

  it.each(['write', 'fsync', 'rename'])('is the old one when %s fails', (call) => {
    folder.write(VOLUME)
    failing = call
    expect(() => folder.write({ ...VOLUME, replicas: 2 })).toThrow(`${call} fails`)
    failing = undefined
    expect(folder.read()).toEqual(VOLUME)
  })
})
