import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Heartbeat } from '../src/heartbeat.js'
import { standStill } from './fixture.js'

const answering = `
  const { parentPort } = require('node:worker_threads')
  parentPort.on('message', (answers) => answers && parentPort.postMessage('alive'))
`

// The peer is another thread, so that it lives on while this one stands still.
describe('a heartbeat', () => {
  let peer: Worker
  let answers: boolean
  let asked: number
  let heartbeat: Heartbeat
  let dead: Promise<string>

  beforeEach(async () => {
    answers = true
    asked = 0
    peer = new Worker(answering, { eval: true })
    await once(peer, 'online')
    dead = new Promise((resolve) => {
      const ask = async (): Promise<void> => {
        asked++
        const answer = once(peer, 'message')
        peer.postMessage(answers)
        await answer
      }
      heartbeat = new Heartbeat({ interval: 50, timeout: 300, ask, dead: resolve })
    })
  })

  afterEach(async () => {
    heartbeat.stop()
    await peer.terminate()
  })

  const within = (milliseconds: number): Promise<string | undefined> =>
    Promise.race([
      dead,
      new Promise<undefined>((resolve) => setTimeout(() => resolve(undefined), milliseconds)),
    ])

  async function questions(count: number): Promise<void> {
    while (asked < count) await new Promise((resolve) => setTimeout(resolve, 1))
  }

  it('goes on while the peer answers', async () => {
    await questions(5)
    expect(await within(100)).toBeUndefined()
  })

  it('ends when the peer is silent', async () => {
    await questions(2)
    answers = false
    expect(await within(3_000)).toMatch(/did not answer for \d+ ms/)
  })

  it('does not take a standstill of this process for silence of the peer', async () => {
    for (let time = 1; time <= 3; time++) {
      await questions(asked + 1)
      standStill(1_000)
    }
    expect(await within(200)).toBeUndefined()
    await questions(asked + 3)
  })

  it('ends when a question cannot be asked', async () => {
    heartbeat.stop()
    const broken = new Promise<string>((resolve) => {
      const ask = () => Promise.reject(new Error('the connection broke'))
      heartbeat = new Heartbeat({ interval: 10, timeout: 300, ask, dead: resolve })
    })
    expect(await broken).toBe('the connection broke')
  })
})
