import { closeSync, openSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { closeDescriptor } from '../src/kernel.js'
import { Client, MIB, READ, setup, WRITE } from './fixture.js'

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
    for (let time = 0; time < 40; time++) {
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
