import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Worker } from 'node:worker_threads'
import { describe, expect, it } from 'vitest'

const index = fileURLToPath(new URL('../../dist/index.js', import.meta.url))

/** A worker that leaves everything open: a listener, a connection with traffic, a queue being waited on. */
const BUSY = `
const { parentPort } = require('node:worker_threads')
import(${JSON.stringify(index)}).then(async ({ ConnectionId, Listener }) => {
  let context
  const ends = async (id) => {
    const pd = id.context.allocateProtectionDomain()
    const channel = id.context.createCompletionChannel()
    const cq = id.context.createCompletionQueue({ entries: 64, channel })
    const region = await pd.allocateMemoryRegion(4096, ['remote-write'])
    const own = [pd.registerMemoryRegion(new ArrayBuffer(4096)), pd.registerMemoryRegion(new Uint8Array(99))]
    context = id.context
    context.asyncEvents.subscribe(() => {})
    const array = cq.createCompletionArray(8)
    return { cq, region, own, array, qp: id.createQueuePair(pd, { sendQueue: cq }) }
  }
  const listener = await Listener.listen('iwarp://127.0.0.1:0', async ({ id }) => {
    const end = await ends(id)
    end.qp.postReceive({ data: [{ region: end.region }] })
    await id.accept()
    end.cq.wait().catch(() => {})
  })
  const id = await ConnectionId.resolve(listener.uri)
  const { cq, qp, region } = await ends(id)
  await id.connect()
  cq.wait().catch(() => {})
  for (const memory of [new ArrayBuffer(4096), new ArrayBuffer(2 ** 26)])
    void id.context.allocateProtectionDomain().registerMemoryRegionAsync(memory)
  for (let i = 0; i < 9; i++) void id.context.allocateProtectionDomain().registerMemoryRegion(new ArrayBuffer(99)).closeAsync()
  qp.postSend({ opcode: 'send', data: [{ region, length: 8 }] })
  parentPort.postMessage('busy')
})`

describe('a worker thread', () => {
  it.each([1, 2, 3, 4, 5])(
    'that is terminated with everything open leaves the process alive, time %i',
    async () => {
      const worker = new Worker(BUSY, { eval: true })
      expect(await once(worker, 'message')).toEqual(['busy'])
      await worker.terminate()
    },
  )
})

describe('a process', () => {
  it('that ends with everything open ends well', async () => {
    const script = `${BUSY.replace("require('node:worker_threads')", '{ parentPort: { postMessage: () => process.exit(7) } }')}`
    const failure = await promisify(execFile)(process.execPath, ['-e', script], { timeout: 50_000 }).catch(
      (reason: unknown) => reason,
    )
    expect(failure).toMatchObject({ code: 7, signal: null })
  })

  it('that returns from its last line with memory of its own still registered ends well', async () => {
    const script = `import(${JSON.stringify(index)}).then(({ openDevice }) => {
      const pd = openDevice('iwarp0', 'iwarp').allocateProtectionDomain()
      globalThis.kept = Array.from({ length: 3 }, () => pd.registerMemoryRegion(new ArrayBuffer(4096)))
      console.log(kept.length)
    })`
    const outcome = await promisify(execFile)(process.execPath, ['-e', script], { timeout: 50_000 })
    expect(outcome).toEqual({ stdout: '3\n', stderr: '' })
  })
})
