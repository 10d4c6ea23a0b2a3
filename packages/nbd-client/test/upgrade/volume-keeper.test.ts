import { mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { VolumeServer } from '@rdmakit/remote-volume/internal'
import { SwapServer, SwapServerSession } from '@rdmakit/swap-server'
import { expect, it, onTestFinished } from 'vitest'
import { findDevice } from '../../src/kernel/device-identity.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { VolumeKeeper } from '../../src/upgrade/volume-keeper.js'
import { MIB } from '../helpers/fixture.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

/** A server, and a folder of a volume for it; both go with the test. */
async function lend(): Promise<{ folder: StateFolder; uri: string }> {
  const server = new SwapServer({ memory: 4 * MIB, slabSize: MIB })
  onTestFinished(() => server.close())
  const folder = StateFolder.open(join(temporaryFolder(), 'state'))
  onTestFinished(() => folder.close())
  return { folder, uri: await server.listen('iwarp://127.0.0.1:0') }
}

async function openSession(uri: string): Promise<SwapServerSession> {
  const session = await SwapServerSession.open([uri], { linger: 1000 })
  onTestFinished(() => session.close())
  return session
}

it('a server whose joining could not be written joins again, with the session that it has then', async () => {
  const { folder, uri } = await lend()
  const { keep } = new VolumeKeeper(folder, { size: 4 * MIB, replicas: 1 }).options(1000)
  const join = async () => {
    const session = await SwapServerSession.open([uri], { linger: 1000 })
    try {
      keep?.([new VolumeServer(0, [uri], session)])
      return session.identity
    } finally {
      await session.close()
    }
  }
  const before = folder.read()
  renameSync(folder.path, `${folder.path}-away`)
  await expect(join()).rejects.toMatchObject({ code: 'ENOENT' })
  mkdirSync(folder.path, { mode: 0o700 })
  const identity = await join()
  expect(before).toBeUndefined()
  expect(folder.read()?.servers).toMatchObject([{ index: 0, uris: [uri], linger: 1000, identity }])
})

it('a device is on record by its name before the kernel has it, and by its index after', async () => {
  const { folder, uri } = await lend()
  const session = await openSession(uri)
  const keeper = new VolumeKeeper(folder, { size: 4 * MIB, replicas: 1 })
  keeper.options(1000).keep?.([new VolumeServer(0, [uri], session)])
  keeper.connecting('rdmakit-a')
  const during = folder.read()
  keeper.device({ front: 'nbd', index: 5, identifier: 'rdmakit-a', connections: 2 })
  const after = folder.read()
  expect(during).toMatchObject({ connecting: 'rdmakit-a' })
  expect(during).not.toHaveProperty('device')
  expect(after).toMatchObject({ device: { index: 5, identifier: 'rdmakit-a', connections: 2 } })
  expect(after).not.toHaveProperty('connecting')
})

it('a device is found by its name, among others and those that were detached', () => {
  const devices = temporaryFolder()
  const make = (name: string, files: Record<string, string>) => {
    mkdirSync(join(devices, name))
    for (const [file, text] of Object.entries(files)) writeFileSync(join(devices, name, file), text)
  }
  make('sda', {})
  make('nbd0', { pid: '1\n' })
  make('nbd1', { pid: '1\n', backend: 'rdmakit-a\n' })
  make('nbd2', { backend: 'rdmakit-b\n' })
  make('nbd11', { pid: '1\n', backend: 'rdmakit-c\n' })
  expect(findDevice('rdmakit-a', devices)).toBe(1)
  expect(findDevice('rdmakit-c', devices)).toBe(11)
  expect(findDevice('rdmakit-b', devices)).toBeUndefined()
  expect(findDevice('rdmakit-d', devices)).toBeUndefined()
})

it('a volume is one with compressed pages before the first, and only when the engine has their lengths', async () => {
  const { folder, uri } = await lend()
  const session = await openSession(uri)
  const fresh = new VolumeKeeper(folder, { size: 4 * MIB, replicas: 1 })
  fresh.options(1000).keep?.([new VolumeServer(0, [uri], session)])
  const plain = folder.read()
  expect(plain).not.toHaveProperty('compressed')
  const next = new VolumeKeeper(folder, { size: 4 * MIB, replicas: 1 }, plain)
  expect(next.options(1000, undefined, 'lz4').engine.pageLengths).toBe(folder.pageLengths)
  // A process that dies here has written no page.
  expect(folder.read()).not.toHaveProperty('compressed')
  next.compresses()
  const kept = folder.read()
  expect(kept).toMatchObject({ compressed: true })
  const last = () => new VolumeKeeper(folder, { size: 4 * MIB, replicas: 1 }, kept).options(1000)
  expect(last).toThrow(/pages\.lz4 is missing or empty/)
  writeFileSync(folder.pageLengths, 'its header')
  expect(last().engine.pageLengths).toBe(folder.pageLengths)
})
