// Whatever the files of a state folder hold when a process takes them over: it refuses, and says which file is wrong,
// or no page reads as something that it never was. Never a crash.
import { randomBytes } from 'node:crypto'
import {
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Compress, KeptServer } from '@rdmakit/remote-volume'
import { endKept } from '@rdmakit/remote-volume/internal'
import { SwapServer } from '@rdmakit/swap-server'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { effort, patience } from '../../../../test/effort.js'
import { Volume } from '../../src/engine/block-volume.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { formatVolume, type KeptVolume, parseVolume } from '../../src/upgrade/volume-json.js'
import { VolumeKeeper } from '../../src/upgrade/volume-keeper.js'
import { Client, MIB, READ, WRITE } from '../helpers/fixture.js'

const PAGE = 4096
const SLABS = 4
const PAGES = 32
const SIZE = SLABS * MIB
/** How long a server keeps the memory of a dead process: longer than these tests take. */
const LINGER_MS = 3_600_000
/** The backup's queue, as small as possible: each volume allocates it. */
const QUEUE = 512 * 1024
/** Bytes of a record of the slab map (packages/remote-volume/native/volume/slab_record.h). */
const RECORD = 128

/** In every slab, with pages between them that were never written. */
const offsetOf = (page: number) => (page % SLABS) * MIB + Math.floor(page / SLABS) * 2 * PAGE
/** Every third one does not get smaller. */
const CONTENTS = Array.from({ length: PAGES }, (_, page) =>
  page % 3 === 0 ? randomBytes(PAGE) : Buffer.alloc(PAGE, `page ${page};`),
)
const contentsOf = (page: number) => CONTENTS[page] as Buffer

let top: string
let server: SwapServer
let uri: string
let volumes = 0

beforeAll(async () => {
  top = mkdtempSync(join(tmpdir(), 'nbd-damaged-'))
  server = new SwapServer({ memory: 32 * MIB, slabSize: MIB, maxLinger: LINGER_MS })
  uri = await server.listen(`shm://${join(top, 'server.sock')}`)
})

afterAll(async () => {
  for (const left of kept.values()) await left[Symbol.asyncDispose]()
  await server.close()
  rmSync(top, { recursive: true })
})

type Read = 'right' | 'error' | 'zeros' | 'wrong'

interface Shape {
  /** has all of the volume */
  readonly backup: boolean
  readonly compress: Compress
}

/** Those that may be used once more, by their shape. */
const kept = new Map<string, Left>()

/** The state folder of a volume whose process has left it. */
class Left {
  readonly state = join(top, `state-${++volumes}`)
  readonly #backup = join(top, `backup-${volumes}`)
  #files = new Map<string, Buffer>()
  #kept: KeptVolume | undefined

  private constructor(private readonly shape: Shape) {}

  /** A new folder, or one that no process has taken over since. */
  static async get({ backup = true, compress = 'none' }: Partial<Shape> = {}): Promise<Left> {
    const shape = { backup, compress }
    const key = JSON.stringify(shape)
    const left = kept.get(key) ?? (await Left.#make(shape))
    kept.delete(key)
    return left
  }

  static async #make(shape: Shape): Promise<Left> {
    const left = new Left(shape)
    const folder = StateFolder.open(left.state)
    const volume = await Volume.open({ ...left.#options(folder), servers: [[uri]], size: SIZE, lanes: 1 })
    const client = new Client(volume.engine.attachSocketpair(0))
    for (let page = 0; page < PAGES; page++)
      expect(await client.request(WRITE, offsetOf(page), PAGE, contentsOf(page))).toMatchObject({ error: 0 })
    const behind = () => volume.engine.statistics().backup
    if (shape.backup)
      await expect
        .poll(behind, { interval: 5 })
        .toMatchObject({ working: true, stalePages: 0, queuedPages: 0 })
    client.close()
    await volume.leave()
    left.#kept = folder.read()
    folder.close()
    for (const name of readdirSync(left.state)) left.#files.set(name, readFileSync(join(left.state, name)))
    return left
  }

  /** Lets the next test have it: its files are as they were. For one that was refused, and is whole. */
  keep(): void {
    for (const name of readdirSync(this.state)) rmSync(join(this.state, name))
    for (const [name, bytes] of this.#files) writeFileSync(join(this.state, name), bytes, { mode: 0o600 })
    kept.set(JSON.stringify(this.shape), this)
  }

  #options(folder: StateFolder, kept?: KeptVolume) {
    const { backup, compress } = this.shape
    const keeper = new VolumeKeeper(folder, kept ?? { size: SIZE, replicas: 1 }, kept)
    const { engine, ...rest } = keeper.options(
      LINGER_MS,
      backup ? { file: this.#backup, queue: QUEUE } : undefined,
      compress,
    )
    return { ...rest, engine: { ...engine, compress } }
  }

  /** The next process's view: the error with which it refuses, or the state of each page. */
  async takeOver(): Promise<Error | Read[]> {
    const folder = StateFolder.open(this.state)
    let volume: Volume | undefined
    try {
      const kept = folder.read() as KeptVolume
      const options = { ...this.#options(folder, kept), servers: [[uri]], size: SIZE, lanes: 1 }
      volume = (await Volume.takeOver(options, kept)).volume
      const client = new Client(volume.engine.attachSocketpair(0))
      const pages: Read[] = []
      for (let page = 0; page < PAGES; page++) {
        const { error, data } = (await client.request(READ, offsetOf(page), PAGE)) ?? {}
        if (error !== 0) pages.push('error')
        else if (data?.equals(contentsOf(page))) pages.push('right')
        else pages.push(data?.equals(Buffer.alloc(PAGE)) ? 'zeros' : 'wrong')
      }
      client.close()
      return pages
    } catch (failure) {
      return failure as Error
    } finally {
      await volume?.close()
      folder.close()
    }
  }

  /** Its slabs go back to the server. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#kept !== undefined) await endKept(this.#kept, {}, () => {})
    rmSync(this.state, { recursive: true })
    rmSync(this.#backup, { force: true })
  }
}

it('a volume that is left alone is whole', async () => {
  await using left = await Left.get()
  expect(await left.takeOver()).toEqual(Array(PAGES).fill('right'))
})

it('a process that died just before a record of the slab map counted leaves the one before', async () => {
  await using left = await Left.get()
  const file = join(left.state, 'slabs.map')
  const bytes = readFileSync(file)
  // The generation of slab 3, which is stored first.
  bytes.writeUInt32LE(bytes.readUInt32LE(PAGE + 3 * RECORD + 4) + 1, PAGE + 3 * RECORD + 4)
  writeFileSync(file, bytes)
  expect(await left.takeOver()).toEqual(Array(PAGES).fill('right'))
})

const MAPS: [string, Partial<Shape>][] = [
  ['pages.map', {}],
  ['slabs.map', {}],
  ['pages.crc', {}],
  ['backup.map', {}],
  ['pages.lz4', { compress: 'lz4-always' }],
  ['pages.lz4', { compress: 'lz4-always', backup: false }],
  // For a packed page only this shows that it has changed.
  ['pages.crc', { compress: 'lz4-always', backup: false }],
]
/**
 * Without these files it is unknown what is written; the others only make reads safer, or are another way to the
 * pages.
 */
const NEEDED = ['pages.map', 'slabs.map', 'pages.lz4']

const REFUSAL = (name: string) => new RegExp(`${name} is of another volume, or damaged`)

describe.each(MAPS)('%s, of a volume with %o,', (name, shape) => {
  const afterDamage = async (damage: (file: string) => void): Promise<Error | Read[]> => {
    const left = await Left.get(shape)
    damage(join(left.state, name))
    const outcome = await within(left.takeOver())
    if (outcome instanceof Error) left.keep()
    else await left[Symbol.asyncDispose]()
    return outcome
  }

  it.each<[string, (file: string) => void]>([
    ['gone', (file) => rmSync(file)],
    ['empty', (file) => truncateSync(file, 0)],
  ])('that is %s is refused when nothing else knows', async (_, damage) => {
    const outcome = await afterDamage(damage)
    if (NEEDED.includes(name))
      expect(outcome).toMatchObject({
        name: 'ConfigurationError',
        message: expect.stringContaining(`${name} is missing or empty`),
      })
    else expect(outcome).toEqual(Array(PAGES).fill('right'))
  })

  it.each<[string, (file: string) => void]>([
    ['cut', (file) => truncateSync(file, statSync(file).size - 1)],
    ['cut to its header', (file) => truncateSync(file, PAGE)],
    ['longer', (file) => truncateSync(file, statSync(file).size + PAGE)],
    ['all zeros', (file) => writeFileSync(file, Buffer.alloc(statSync(file).size))],
    ['something else', (file) => writeFileSync(file, Buffer.alloc(statSync(file).size, 'something else'))],
  ])('that is %s is refused by name', async (_, damage) => {
    expect(await afterDamage(damage)).toMatchObject({
      name: 'ConfigurationError',
      message: expect.stringMatching(REFUSAL(name)),
    })
  })

  it(
    'with other bytes somewhere is refused, or no page is another one',
    async () => {
      await fc.assert(
        fc.asyncProperty(
          fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { minLength: 1, maxLength: 200 }),
          async (changes) => {
            const outcome = await afterDamage((file) => {
              const bytes = readFileSync(file)
              for (const [at, byte] of changes) bytes[placeOf(at, bytes.length)] = byte
              writeFileSync(file, bytes)
            })
            if (outcome instanceof Error) {
              expect(outcome).toMatchObject({
                name: 'ConfigurationError',
                message: expect.stringMatching(REFUSAL(name)),
              })
              return
            }
            // A page of which the map says that it was never written reads as zeros: nothing else tells.
            const allowed: Read[] = name === 'pages.map' ? ['right', 'error', 'zeros'] : ['right', 'error']
            for (const page of outcome) expect(allowed).toContain(page)
          },
        ),
        { numRuns: effort(5), verbose: 1 },
      )
    },
    patience(60_000),
  )
})

it('volumes that were refused are whole once their files are', async () => {
  const refused = [...kept.values()]
  kept.clear()
  for (const each of refused) {
    await using left = each
    expect(await left.takeOver()).toEqual(Array(PAGES).fill('right'))
  }
})

/** Damage must not cause a READ that is never answered. */
async function within<Value>(value: Promise<Value>, milliseconds = 50_000): Promise<Value> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came of it in ${milliseconds} ms`)), milliseconds)
  })
  try {
    return await Promise.race([value, late])
  } finally {
    clearTimeout(timer)
  }
}

/** Mostly where the entries of the pages and slabs are: the files are larger. */
function placeOf(at: number, length: number): number {
  const [where, within] = [at % 8, Math.floor(at / 8)]
  if (where === 0) return within % length
  return where === 1 ? within % 64 : Math.min(length - 1, PAGE + (within % 512))
}

describe('volume.json', () => {
  async function written(encoding: BufferEncoding): Promise<string> {
    const left = await Left.get()
    left.keep()
    return readFileSync(join(left.state, 'volume.json'), encoding)
  }

  it('with other bytes somewhere is refused, or means the same when it is read again', async () => {
    const text = await written('latin1')
    const changes = fc.array(
      fc.record({
        at: fc.nat({ max: text.length }),
        gone: fc.nat({ max: 8 }),
        come: fc.oneof(fc.string({ maxLength: 8 }), fc.constantFrom('null', '[]', '{}', '-1', '1e400', '"')),
      }),
      { minLength: 1, maxLength: 3 },
    )
    fc.assert(
      fc.property(changes, fc.boolean(), (list, cut) => {
        let changed = text
        for (const { at, gone, come } of list)
          changed = changed.slice(0, at) + come + changed.slice(at + gone)
        refusedOrSame(cut ? changed.slice(0, list[0]?.at) : changed)
      }),
      { numRuns: effort(300), verbose: 1 },
    )
  })

  it('with other values anywhere is refused, or means the same when it is read again', async () => {
    const text = await written('utf8')
    const paths = pathsOf(JSON.parse(text))
    fc.assert(
      fc.property(fc.constantFrom(...paths), fc.oneof(fc.jsonValue(), fc.double()), (path, value) => {
        const changed = JSON.parse(text)
        const last = path.at(-1) as string
        let at = changed
        for (const key of path.slice(0, -1)) at = at[key]
        at[last] = value
        refusedOrSame(JSON.stringify(changed))
      }),
      { numRuns: effort(300), verbose: 1 },
    )
  })

  it.each<[string, (kept: KeptVolume) => KeptVolume]>([
    ['another size', (kept) => ({ ...kept, size: SIZE * 2 })],
    ['another size of slabs', (kept) => ({ ...kept, slabSize: kept.slabSize * 2 })],
  ])('that names %s is refused', async (_, change) => {
    const left = await Left.get()
    const file = join(left.state, 'volume.json')
    writeFileSync(file, formatVolume(change(parseVolume(readFileSync(file, 'utf8')))))
    expect(await left.takeOver()).toMatchObject({
      code: 'EINVAL',
      message: expect.stringMatching(/slabs\.map/),
    })
    left.keep()
  })

  it('that names another server, session or token loses no page that is in the backup', async () => {
    const changes: ((server: KeptServer) => KeptServer)[] = [
      (one) => ({ ...one, index: one.index + 1 }),
      (one) => ({ ...one, uris: ['iwarp://127.0.0.1:9'], linger: 0 }),
      (one) => ({ ...one, identity: { ...one.identity, session: one.identity.session + 1 } }),
      (one) => ({ ...one, identity: { ...one.identity, token: new Uint8Array(16) } }),
      (one) => ({ ...one, identity: { ...one.identity, epoch: '0000000000000000' } }),
    ]
    for (const change of changes) {
      await using left = await Left.get()
      const file = join(left.state, 'volume.json')
      const kept = parseVolume(readFileSync(file, 'utf8'))
      writeFileSync(file, formatVolume({ ...kept, servers: kept.servers.map(change) }))
      expect(await left.takeOver()).toEqual(Array(PAGES).fill('right'))
    }
  })
})

/** Each way to a value within `value`. */
function pathsOf(value: unknown, before: string[] = []): string[][] {
  if (typeof value !== 'object' || value === null) return [before]
  const within = Object.entries(value).flatMap(([key, each]) => pathsOf(each, [...before, key]))
  return before.length === 0 ? within : [before, ...within]
}

/** One line for people, or a volume that is written as it was read. */
function refusedOrSame(text: string): void {
  let volume: KeptVolume
  try {
    volume = parseVolume(text)
  } catch (failure) {
    expect((failure as Error).constructor.name).toMatch(/^(Error|UsageError|InvalidInputError)$/)
    expect((failure as Error).message).toMatch(/^.{1,300}$/)
    return
  }
  expect(parseVolume(formatVolume(volume))).toEqual(volume)
}
