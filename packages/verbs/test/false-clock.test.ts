// A program whose tests put a false clock in the place of the real one: sinon's, jest's and vitest's queue no microtasks then.
import { expect, it, onTestFinished, vi } from 'vitest'
import { ConnectionId, Listener } from '../src/index.js'

it('a fault of who listens is heard while time stands still', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'setImmediate', 'performance', 'queueMicrotask'] })
  onTestFinished(() => void vi.useRealTimers())
  const fault = new TypeError('a fault of the program')
  let tell: (failure: unknown) => void = () => {}
  const heard = new Promise((resolve) => {
    tell = resolve
  })
  const onRequest = () => {
    throw fault
  }
  const listener = await Listener.listen('iwarp://127.0.0.1:0', onRequest, { onError: tell })
  onTestFinished(() => listener.close())
  const id = await ConnectionId.resolve(listener.uri)
  onTestFinished(() => id.close())
  const context = id.context
  id.createQueuePair(context.allocateProtectionDomain(), {
    sendQueue: context.createCompletionQueue({ entries: 16 }),
  })
  await expect(id.connect()).rejects.toMatchObject({ verb: 'rdma_connect' })
  expect(await heard).toBe(fault)
})
