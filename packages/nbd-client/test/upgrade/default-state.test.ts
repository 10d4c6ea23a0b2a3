import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { inheritedState, openOwnState } from '../../src/upgrade/default-state.js'
import {
  ownStateDirectory,
  ownStateName,
  type VolumeIdentity,
} from '../../src/upgrade/default-state-names.js'
import { HAND_OVER_VERSION } from '../../src/upgrade/hand-over-channel.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { Successor } from '../../src/upgrade/successor.js'
import type { KeptVolume } from '../../src/upgrade/volume-json.js'
import { MIB } from '../helpers/fixture.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

const COMMAND: VolumeIdentity = {
  device: undefined,
  servers: [['rdma://10.0.0.1:7471']],
  size: 64 * MIB,
  replicas: 1,
  thin: false,
  access: {},
}
const NAMED = { ...COMMAND, device: '/dev/nbd3' }

const keptOf = (index: number): KeptVolume => ({
  size: 64 * MIB,
  slabSize: MIB,
  replicas: 1,
  servers: [
    {
      index: 0,
      uris: ['rdma://10.0.0.1:7471'],
      identity: { epoch: '0123456789abcdef', session: 7, token: new Uint8Array(16) },
      linger: 300_000,
    },
  ],
  device: { front: 'nbd', index, identifier: `rdmakit-${index}`, connections: 2 },
})

/** Called once, when a lock is open and not had yet: what another process does then. */
let beforeLocked = () => {}
vi.mock('../../src/kernel/kernel.js', async (original) => {
  const kernel = await original<typeof import('../../src/kernel/kernel.js')>()
  return {
    ...kernel,
    lockFile: (path: string) => {
      const lock = kernel.lockFile(path)
      const meanwhile = beforeLocked
      beforeLocked = () => {}
      meanwhile()
      return lock
    },
  }
})

const open: StateFolder[] = []
/** As an attach does. */
function start(identity = COMMAND, exists = (_: { index: number }) => true): StateFolder {
  const folder = openOwnState(identity, exists)
  open.push(folder)
  return folder
}
/** As the kernel does it when a process is killed. */
function die(folder: StateFolder): void {
  open.splice(open.indexOf(folder), 1)
  folder.close()
}

beforeEach(() => {
  vi.stubEnv('RDMAKIT_RUN', join(temporaryFolder(), 'run'))
})
afterEach(() => {
  for (const folder of open.splice(0)) folder.close()
  vi.unstubAllEnvs()
})

describe('the name of a state folder that was not given', () => {
  it('is that of the device, where there is one', () => {
    expect(ownStateName(NAMED)).toBe('nbd-3')
    expect(ownStateName({ ...NAMED, size: 128 * MIB })).toBe('nbd-3')
    expect(ownStateName({ ...COMMAND, front: 'ublk', device: '/dev/ublkb3' })).toBe('ublk-3')
  })

  it('is the same for the same volume, whatever else the command line says', () => {
    const more = { ...COMMAND, metrics: '9472', operationTimeout: 30, connections: 4 }
    expect(ownStateName(more)).toBe(ownStateName(COMMAND))
  })

  it.each<[string, Partial<VolumeIdentity>]>([
    ['another server', { servers: [['rdma://10.0.0.2:7471']] }],
    ['one server in place of two', { servers: [['rdma://10.0.0.1:7471', 'iwarp://10.0.0.1:7472']] }],
    ['another size', { size: 128 * MIB }],
    ['more replicas', { replicas: 2 }],
    ['a thin volume', { thin: true }],
    ['another tenant', { access: { tenant: 'prod' } }],
    ['another driver', { front: 'ublk' }],
  ])('is another one for %s', (_, change) => {
    expect(ownStateName({ ...COMMAND, ...change })).not.toBe(ownStateName(COMMAND))
  })
})

describe.each([
  ['a device that was named', NAMED, 3],
  ['a device that the kernel chose', COMMAND, 0],
] as const)('the state of %s', (_, command, index) => {
  it('is found by the same command when its process is gone', () => {
    const first = start(command)
    first.write(keptOf(index))
    die(first)
    const second = start(command)
    expect(second.path).toBe(first.path)
    expect(second.read()).toEqual(keptOf(index))
  })

  it('is for its owner alone, and goes with the device', () => {
    const folder = start(command)
    folder.write(keptOf(index))
    expect(readdirSync(ownStateDirectory())).toEqual([basename(folder.path)])
    folder.forget()
    die(folder)
    expect(readdirSync(ownStateDirectory())).toEqual([])
  })
})

it('a device that was named is refused while another process has it', () => {
  start(NAMED)
  expect(() => start(NAMED)).toThrow(
    expect.objectContaining({ status: 73, message: expect.stringMatching(/^\/dev\/nbd3 is busy/) }),
  )
})

describe('two attaches by the same command line', () => {
  it('have a folder each', () => {
    const [first, second] = [start(), start()]
    expect(first.path).not.toBe(second.path)
  })

  it('find the one whose process is gone, whichever that is', () => {
    const [first, second] = [start(), start()]
    first.write(keptOf(0))
    second.write(keptOf(1))
    die(second)
    expect(start().path).toBe(second.path)
    die(first)
    expect(start().path).toBe(first.path)
  })

  it('find what is left behind a folder that is free', () => {
    const [first, second] = [start(), start()]
    second.write(keptOf(1))
    first.forget()
    die(first)
    die(second)
    expect(start().path).toBe(second.path)
    expect(start().path).toBe(first.path)
  })

  it('use a folder again whose device is gone', () => {
    const [first, second] = [start(), start()]
    first.write(keptOf(0))
    second.write(keptOf(1))
    die(first)
    die(second)
    const exists = ({ index }: { index: number }) => index === 1
    expect(start(COMMAND, exists).path).toBe(second.path)
    expect(start(COMMAND, exists).path).toBe(first.path)
  })
})

it('a folder that is removed while it is being opened is made anew, and has one owner', () => {
  const gone = start(NAMED)
  die(gone)
  beforeLocked = () => gone.forget()
  start(NAMED)
  expect(() => start(NAMED)).toThrow(/busy/)
})

it('a folder that was named stays when its device goes', () => {
  const folder = StateFolder.open(join(temporaryFolder(), 'named'))
  open.push(folder)
  folder.write(keptOf(0))
  folder.forget()
  expect(readdirSync(folder.path)).toEqual(['lock'])
})

it('a folder in which somebody keeps something else stays', () => {
  const folder = start()
  mkdirSync(join(folder.path, 'more'))
  folder.forget()
  expect(existsSync(join(folder.path, 'more'))).toBe(true)
})

describe('a successor', () => {
  it('is told the folder', async () => {
    const ready = `{"say":"ready","version":${HAND_OVER_VERSION}}`
    const told = join(temporaryFolder(), 'told')
    const script = `echo "$RDMAKIT_HAND_OVER_STATE" >'${told}'; echo '${ready}' >&3; read line <&3`
    const successor = await Successor.start(['sh', '-c', script], { state: '/run/it' })
    await successor.kill()
    expect(readFileSync(told, 'utf8')).toBe('/run/it\n')
  })

  it('goes on in the folder of its predecessor', () => {
    for (const command of [NAMED, COMMAND]) {
      const { path } = start(command)
      expect(inheritedState(command, path)).toBe(path)
    }
  })

  it('is refused by a command line that would not find the folder again', () => {
    const { path } = start()
    const other = { ...COMMAND, servers: [['rdma://10.0.0.2:7471']] }
    expect(() => inheritedState(other, path)).toThrow(`add --state ${path}`)
    expect(() => inheritedState(COMMAND, '/run/swap0')).toThrow('add --state /run/swap0')
    expect(() => inheritedState(COMMAND, undefined)).toThrow(/add --state/)
  })
})
