// The state folder of a device of an older version is taken over, as its process left it. attached-9d3311a was made by the
// programs of that commit, in the lab's guest, whose kernel has nbd: `nbd-client attach --device /dev/nbd0 --size 4M
// --connections 2 --state --backup --ack backup`, with one swap-server of slabs of 1 MiB. dd wrote the pages 0 to 527
// (oflag=direct), blkdiscard took 32 to 47 away, and then both programs were killed with SIGKILL. Here is neither that
// device nor that server: the next process's part that comes after the kernel was asked for the device is called by
// itself, and what the server had is in the backup.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { NothingLeftError } from '@rdmakit/remote-volume'
import { beforeEach, expect, it, onTestFinished } from 'vitest'
import type { AttachOptions } from '../../src/attach/attach-options.js'
import { checkSame } from '../../src/attach/same-device.js'
import { successionOf } from '../../src/attach/succession.js'
import type { Volume } from '../../src/engine/block-volume.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import type { KeptDevice } from '../../src/upgrade/volume-json.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'
import { unpackState } from '../helpers/older-state.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

const PAGE = 4096
const PAGES = (4 * MIB) / PAGE
const WRITTEN = 528
const EIO = 5

const isDiscarded = (page: number) => page >= 32 && page < 48
const contentsOf = (page: number) =>
  page < WRITTEN && !isDiscarded(page) ? Buffer.alloc(PAGE, `page ${page};`) : Buffer.alloc(PAGE)

let path: string
let folder: StateFolder

beforeEach(() => {
  path = temporaryFolder()
  unpackState('attached-9d3311a', path)
  folder = StateFolder.open(join(path, 'state'))
  onTestFinished(() => folder.close())
})

const json = () => readFileSync(join(path, 'state/volume.json'), 'utf8')

const options = (): AttachOptions => ({
  servers: [['iwarp://127.0.0.1:17471']],
  size: 4 * MIB,
  connections: 2,
  operationTimeout: 4,
  replicas: 1,
  thin: false,
  acknowledge: 'backup',
  backup: { file: join(path, 'backup') },
  readAhead: 0,
  refillRate: 0,
  checksums: true,
  compress: 'none',
  access: {},
  linger: 300,
  reconnect: 300,
  signal: new AbortController().signal,
  device: '/dev/nbd0',
  pin: false,
  swap: false,
  swapPriority: undefined,
  metrics: undefined,
})

function takeUp(changed: Partial<AttachOptions> = {}, handedOver = false): Promise<Volume> {
  const device = folder.read()?.device as KeptDevice
  return successionOf({ ...options(), ...changed }, folder, device).takeUp(undefined, handedOver)
}

/** @returns the pages that are not what they must be: those that failed, and those with other bytes */
async function differences(
  client: Client,
  expected: (page: number) => Buffer,
): Promise<[number[], number[]]> {
  const [failed, wrong]: [number[], number[]] = [[], []]
  for (let page = 0; page < PAGES; page++) {
    const read = await client.request(READ, page * PAGE, PAGE)
    if (read?.error === EIO) failed.push(page)
    else if (read?.error !== 0 || !read.data.equals(expected(page))) wrong.push(page)
  }
  return [failed, wrong]
}

it('is that of the device that it was attached as', () => {
  const kept = StateFolder.look(folder.path)
  expect(kept).toMatchObject({
    size: 4 * MIB,
    slabSize: MIB,
    replicas: 1,
    device: { index: 0, connections: 2 },
    servers: [{ index: 0, uris: ['iwarp://127.0.0.1:17471'] }],
  })
  expect(kept).not.toHaveProperty('takeOver')
  expect(checkSame(options(), folder.path, kept as never, kept?.device as never)).toBe('/dev/nbd0')
})

it('has every page for the process that takes it over, and for the one after that', async () => {
  const written = (page: number) => (page === 700 ? Buffer.alloc(PAGE, 'new') : contentsOf(page))
  for (const life of [1, 2]) {
    const volume = await takeUp()
    const client = new Client(volume.engine.attachSocketpair(0))
    expect(await differences(client, life === 1 ? contentsOf : written)).toEqual([[], []])
    expect((await client.request(WRITE, 700 * PAGE, PAGE, written(700)))?.error).toBe(0)
    client.close()
    await volume.leave()
    expect(JSON.parse(json()).takeOver.number).toBe(life)
  }
})

it('has the checksum of each page, which a copy must match', async () => {
  const file = join(path, 'backup')
  const backup = readFileSync(file)
  for (const page of [0, 300, 527]) backup.writeUInt8(backup.readUInt8(page * PAGE + 7) ^ 1, page * PAGE + 7)
  writeFileSync(file, backup)
  const volume = await takeUp()
  const client = new Client(volume.engine.attachSocketpair(1))
  expect(await differences(client, contentsOf)).toEqual([[0, 300, 527], []])
  client.close()
  await volume.leave()
})

it('stays as it is for its process when that hands over, which may have to go on', async () => {
  const before = json()
  const volume = await takeUp({}, true)
  await volume.leave()
  expect(json()).toBe(before)
})

it('is refused where no server and no backup has its pages, after its session’s time', async () => {
  writeFileSync(join(folder.path, 'volume.json'), json().replace('"linger": 300000', '"linger": 500'))
  const without = { backup: undefined, acknowledge: 'all', checksums: false } as const
  await expect(takeUp(without)).rejects.toThrow(NothingLeftError)
  // Who has forgotten an option, and was refused, finds everything with the next command.
  const volume = await takeUp()
  const client = new Client(volume.engine.attachSocketpair(0))
  expect(await differences(client, contentsOf)).toEqual([[], []])
  client.close()
  await volume.leave()
})
