import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import { expect, it } from 'vitest'

const engine = fileURLToPath(new URL('../dist/engine.js', import.meta.url))

const BUSY = `
const { parentPort } = require('node:worker_threads')
const { connect } = require('node:net')
import(${JSON.stringify(engine)}).then(({ BlockEngine }) => {
  const engine = new BlockEngine({ size: 1 << 20, handshakeTimeout: 50 })
  engine.on('handshakeRefused', () => {})
  const { port } = engine.listenTcp('127.0.0.1', 0)
  for (let i = 0; i < 20; i++) connect(port, '127.0.0.1').on('error', () => {})
  setInterval(() => {}, 1000)
  parentPort.postMessage('busy')
})
`

it('an engine ends with the worker that made it, in the middle of its events', async () => {
  for (let round = 0; round < 5; round++) {
    const worker = new Worker(BUSY, { eval: true })
    const [message] = await once(worker, 'message')
    expect(message).toBe('busy')
    await new Promise((resolve) => setTimeout(resolve, 40 + round * 5))
    expect(await worker.terminate()).toBe(1)
  }
})
