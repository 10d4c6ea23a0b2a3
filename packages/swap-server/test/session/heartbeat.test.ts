import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { deferred } from '@rdmakit/verbs/internal'
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { standStill } from '../../../../test/stand-still.js'
import { Heartbeat } from '../../src/client/heartbeat.js'
import { ownClock } from '../fixture.js'

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

describe('a heartbeat whose process stands still when its patience is about to end', () => {
  const INTERVAL_MS = 50
  /** how often it looks */
  const LOOK_MS = INTERVAL_MS / 2

  /** One that has asked and waited for one look less than its timeout, and then stood still until a late look. */
  function late() {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
    onTestFinished(() => void vi.useRealTimers())
    const pass = ownClock()
    const look = (after = LOOK_MS) => {
      pass(after)
      vi.advanceTimersByTime(LOOK_MS)
    }
    const question = deferred<void>()
    const ask = vi.fn(() => question.promise)
    const dead = vi.fn()
    const heartbeat = new Heartbeat({ interval: INTERVAL_MS, timeout: TIMEOUT_MS, ask, dead })
    onTestFinished(() => heartbeat.stop())
    while (ask.mock.calls.length === 0) look()
    for (let waited = LOOK_MS; waited < TIMEOUT_MS; waited += LOOK_MS) look()
    expect(dead).not.toHaveBeenCalled()
    look(10 * TIMEOUT_MS)
    return { answer: question.resolve, ask, dead, look }
  }

  it('reads the answer that lies there', async () => {
    const { answer, ask, dead, look } = late()
    answer()
    // The answer is read in the turn that follows.
    await new Promise((resolve) => setImmediate(resolve))
    look()
    look()
    expect(ask).toHaveBeenCalledTimes(2)
    expect(dead).not.toHaveBeenCalled()
  })

  it('ends at the next look when there is none', () => {
    const { dead, look } = late()
    expect(dead).not.toHaveBeenCalled()
    look()
    expect(dead).toHaveBeenCalledOnce()
  })
})
