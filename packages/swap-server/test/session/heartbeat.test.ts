import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { standStill } from '../../../../test/stand-still.js'
import { Heartbeat } from '../../src/client/heartbeat.js'

/** Another thread answers in less than that, however busy the machine. */
const TIMEOUT_MS = 500

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
      heartbeat = new Heartbeat({ interval: 50, timeout: TIMEOUT_MS, ask, dead: resolve })
    })
  })

  afterEach(async () => {
    heartbeat.stop()
    await peer.terminate()
  })

  /** Until so many more questions were asked, each an interval after the answer to the one before. */
  async function questions(more: number): Promise<void> {
    const enough = asked + more
    await Promise.race([eventually(() => asked >= enough), dead])
  }
  let end: string | undefined
  beforeEach(() => {
    end = undefined
    void dead.then((reason) => {
      end = reason
    })
  })

  it('goes on while the peer answers', async () => {
    await questions(5)
    expect(end).toBeUndefined()
  })

  it('ends when the peer is silent', async () => {
    await questions(2)
    answers = false
    const [, silence] = /did not answer for (\d+) ms/.exec(await dead) ?? []
    expect(Number(silence)).toBeGreaterThanOrEqual(TIMEOUT_MS)
  })

  it('does not take a standstill of this process for silence of the peer', async () => {
    for (let time = 1; time <= 2; time++) {
      await questions(1)
      standStill(1.5 * TIMEOUT_MS)
    }
    await questions(4)
    expect(end).toBeUndefined()
  })

  it('ends when a question cannot be asked', async () => {
    heartbeat.stop()
    const broken = new Promise<string>((resolve) => {
      const ask = () => Promise.reject(new Error('the connection broke'))
      heartbeat = new Heartbeat({ interval: 10, timeout: TIMEOUT_MS, ask, dead: resolve })
    })
    expect(await broken).toBe('the connection broke')
  })
})
