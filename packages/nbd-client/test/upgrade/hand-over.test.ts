import { closeSync, mkdtempSync, openSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { SwapServer } from '@rdmakit/swap-server'
import { describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { eventually } from '../../../../test/eventually.js'
import { Volume } from '../../src/engine/block-volume.js'
import { closeDescriptor } from '../../src/kernel/kernel.js'
import { handOver } from '../../src/upgrade/hand-over.js'
import { HAND_OVER_VERSION } from '../../src/upgrade/hand-over-channel.js'
import { StateFolder } from '../../src/upgrade/state-folder.js'
import { Successor } from '../../src/upgrade/successor.js'
import type { KeptVolume } from '../../src/upgrade/volume-json.js'
import { VolumeKeeper } from '../../src/upgrade/volume-keeper.js'
import { Client, MIB, READ, setup, WRITE } from '../helpers/fixture.js'

describe('a lane that yields', () => {
  it('gives its socket away between two requests, and another lane goes on with it', async () => {
    await using made = await setup()
    const { engine } = made
    const lanes = [await made.addLane(), await made.addLane()]
    const client = new Client(engine.attachSocketpair(0))
    let over = false
    const idle = (lane: number) =>
      new Promise<void>((resolve) => {
        const stop = engine.on('laneIdle', (event) => {
          if (event.lane !== lane) return
          stop()
          resolve()
        })
      })
    const work = (async () => {
      let done = 0
      // Long enough that lanes are often asked in the middle of one.
      for (; !over; done++) {
        const at = (done % 4) * MIB
        const content = Buffer.alloc(MIB, `${done};`)
        expect((await client.request(WRITE, at, MIB, content))?.error).toBe(0)
        expect((await client.request(READ, at, MIB))?.data.equals(content)).toBe(true)
      }
      return done
    })()
    for (let time = 0; time < effort(20); time++) {
      const [from, to] = [lanes[time % 2] as number, lanes[(time + 1) % 2] as number]
      const gone = idle(from)
      const socket = await engine.yieldLane(from)
      expect(socket).toBeGreaterThan(2)
      engine.attachSocket(to, socket as number)
      closeDescriptor(socket as number)
      await gone
    }
    over = true
    expect(await work).toBeGreaterThan(0)
    client.close()
  })

  it('has no socket to give when it serves nobody', async () => {
    await using made = await setup()
    expect(await made.engine.yieldLane(await made.addLane())).toBeUndefined()
  })

  it('goes on with what it has not given away yet when it is told to', async () => {
    await using made = await setup()
    const { engine } = made
    const lane = await made.addLane()
    const client = new Client(engine.attachSocketpair(lane))
    const content = Buffer.alloc(4096, 'content')
    const written = client.request(WRITE, 0, 4096, content.subarray(0, 1000))
    await eventually(() => engine.statistics().lanes[lane]?.inFlight === 1)
    const first = engine.yieldLane(lane)
    engine.resumeLane(lane)
    expect(await first).toBeUndefined()
    client.send(content.subarray(1000))
    expect((await written)?.error).toBe(0)
    expect((await client.request(READ, 0, 4096))?.data.equals(content)).toBe(true)
    // The earlier request does not get the socket that this one gives away.
    const socket = await engine.yieldLane(lane)
    expect(socket).toBeGreaterThan(2)
    closeDescriptor(socket as number)
    client.close()
  })

  it('leaves a client that is silent its connection', async () => {
    await using made = await setup()
    const lane = await made.addLane()
    const client = new Client(made.engine.attachSocketpair(lane))
    const idle = new Promise<void>((resolve) => made.engine.on('laneIdle', () => resolve()))
    const socket = (await made.engine.yieldLane(lane)) as number
    const answer = client.request(READ, 0, 4096)
    await idle
    made.engine.attachSocket(lane, socket)
    closeDescriptor(socket)
    expect((await answer)?.error).toBe(0)
    client.close()
  })

  it('takes no descriptor that is no stream socket', async () => {
    await using made = await setup()
    const lane = await made.addLane()
    const file = openSync('/dev/null', 'r')
    expect(() => made.engine.attachSocket(lane, file)).toThrow(expect.objectContaining({ code: 'EINVAL' }))
    closeSync(file)
    expect(() => made.engine.attachSocket(lane, 9999)).toThrow(expect.objectContaining({ code: 'EINVAL' }))
  })
})

describe('a hand-over that fails', () => {
  it('says which lane did not take its socket back, and closes it', async () => {
    const path = mkdtempSync(join(tmpdir(), 'nbd-hand-over-'))
    const server = new SwapServer({ memory: 4 * MIB, slabSize: MIB })
    const uri = await server.listen(`shm://${join(path, 'server.sock')}`)
    const folder = StateFolder.open(join(path, 'state'))
    const place = { servers: [[uri]], size: 4 * MIB, lanes: 2 }
    const first = new VolumeKeeper(folder, { size: place.size, replicas: 1 })
    const volume = await Volume.open({ ...place, ...first.options(60_000) })
    const clients = [0, 1].map((lane) => new Client(volume.engine.attachSocketpair(lane)))
    const content = Buffer.alloc(4096, 'content')
    expect((await clients[0]?.request(WRITE, 0, 4096, content))?.error).toBe(0)
    const successor = await Successor.start([
      'sh',
      '-c',
      `echo '{"say":"ready","version":${HAND_OVER_VERSION}}' >&3; read line <&3; exit 1`,
    ])
    let other: Client | undefined
    const outcome = await handOver({
      volume,
      folder,
      successor,
      answerTimeout: 50_000,
      retake: async () => {
        const kept = folder.read() as KeptVolume
        const keeper = new VolumeKeeper(folder, kept, kept)
        const again = (await Volume.takeOver({ ...place, ...keeper.options(60_000) }, kept)).volume
        // Lane 0 has something else to do than its socket.
        other = new Client(again.engine.attachSocketpair(0))
        return again
      },
    })
    if (outcome.over) throw new Error('a successor that has ended took over')
    try {
      expect(outcome.lost).toEqual([0])
      expect(await clients[0]?.request(READ, 0, 4096)).toBeUndefined()
      for (const client of [clients[1], other])
        expect((await client?.request(READ, 0, 4096))?.data.equals(content)).toBe(true)
    } finally {
      for (const client of [...clients, other]) client?.close()
      await outcome.volume.close()
      folder.close()
      await server.close()
      rmSync(path, { recursive: true })
    }
  })
})
