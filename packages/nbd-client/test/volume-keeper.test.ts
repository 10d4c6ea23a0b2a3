import { mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { SwapServer, SwapServerSession } from '@rdmakit/swap-server'
import { expect, it } from 'vitest'
import { StateFolder } from '../src/state-folder.js'
import { VolumeKeeper } from '../src/volume-keeper.js'
import { VolumeServer } from '../src/volume-server.js'
import { MIB } from './fixture.js'

it('a server whose joining could not be written joins again, with the session that it has then', async () => {
  const path = mkdtempSync(join(tmpdir(), 'nbd-keeper-'))
  const folder = StateFolder.open(join(path, 'state'))
  const server = new SwapServer({ memory: 4 * MIB, slabSize: MIB })
  const uri = await server.listen('iwarp://127.0.0.1:0')
  try {
    const { joined } = new VolumeKeeper(folder, { size: 4 * MIB, replicas: 1 }).options(1000)
    const join = async () => {
      const session = await SwapServerSession.open([uri], { linger: 1000 })
      try {
        joined?.([new VolumeServer(0, [uri], session)])
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
  } finally {
    folder.close()
    await server.close()
    rmSync(path, { recursive: true })
  }
})
