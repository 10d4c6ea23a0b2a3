import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import { expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'

const engine = fileURLToPath(new URL('../../dist/engine/block-engine.js', import.meta.url))

const BUSY = `
const { parentPort } = require('node:worker_threads')
const { connect } = require('node:net')
import(${JSON.stringify(engine)}).then(({ BlockEngine }) => {
  const engine = new BlockEngine({ size: 1 << 20, handshakeTimeout: 50 })
  engine.on('handshakeRefused', () => parentPort.postMessage('refused'))
  const { port } = engine.listenTcp('127.0.0.1', 0)
  for (let i = 0; i < 20; i++) connect(port, '127.0.0.1').on('error', () => {})
  setInterval(() => {}, 1000)
  parentPort.postMessage('busy')
})
`

it('an engine ends with the worker that made it, in the middle of its events', async () => {
  // At the time-out of its handshakes, of which there are many, and before.
  for (let round = 0; round < effort(4); round++) {
    const worker = new Worker(BUSY, { eval: true })
    for (const wanted of round % 2 === 0 ? ['busy', 'refused'] : ['busy']) {
      const [message] = await once(worker, 'message')
      expect(message).toBe(wanted)
    }
    expect(await worker.terminate()).toBe(1)
  }
})
