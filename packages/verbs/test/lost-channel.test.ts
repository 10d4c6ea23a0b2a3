// A completion channel whose device is gone. These tests make the reports of the native watcher themselves
// (software_channel_watcher tests the watcher); queues and channel are real ones.
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { type Context, openDevice } from '../src/index.js'
import { native } from '../src/native.js'

let context: Context
let tell: (cq: bigint | undefined, failure?: Error) => void

beforeEach(() => {
  context = openDevice('iwarp0', 'iwarp')
  vi.spyOn(native, 'watchChannel').mockImplementation((_channel, wake) => {
    tell = wake
  })
})
afterEach(() => {
  vi.restoreAllMocks()
  context.close()
})

const failure = () =>
  Object.assign(new Error('no such device'), {
    code: 'ENODEV',
    verb: 'ibv_get_cq_event',
    detail: 'its device is gone: input/output error',
  })

it('rejects all that wait, with code, verb and object, and who waits later at once', async () => {
  const channel = context.createCompletionChannel()
  const queues = [1, 2].map(() => context.createCompletionQueue({ entries: 16, channel }))
  const waits = queues.map((queue) => queue.wait().catch((error) => error))
  tell(undefined, failure())
  const expected = {
    name: 'VerbsError',
    code: 'ENODEV',
    verb: 'ibv_get_cq_event',
    object: channel.description,
    message: expect.stringContaining('its device is gone'),
  }
  for (const told of await Promise.all(waits)) expect(told).toMatchObject(expected)
  for (const queue of queues) await expect(queue.wait()).rejects.toMatchObject(expected)
})

it('tells who could not be watched each time that he waits', async () => {
  vi.mocked(native.watchChannel).mockImplementation(() => {
    throw Object.assign(new Error(), {
      code: 'EMFILE',
      verb: 'ibv_get_cq_event',
      detail: 'too many open files',
    })
  })
  const channel = context.createCompletionChannel()
  const queue = context.createCompletionQueue({ entries: 16, channel })
  for (let time = 0; time < 2; time++) await expect(queue.wait()).rejects.toMatchObject({ code: 'EMFILE' })
})
