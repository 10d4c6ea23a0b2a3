// A program whose tests put a false clock in the place of the real one: the ring goes by the real one.
import { expect, it, onTestFinished, vi } from 'vitest'
import { Poller, RingClient } from '../../src/index.js'
import { PROVIDERS, pair } from '../helpers/pair.js'
import { HANG_MS } from '../helpers/processes.js'
import { until } from '../helpers/states.js'
import { LARGE, READ_FROM } from '../helpers/transfers.js'

it.each(PROVIDERS)('all goes on over %s while time stands still', async (_, uri) => {
  vi.useFakeTimers({
    toFake: [
      'setTimeout',
      'clearTimeout',
      'setImmediate',
      'clearImmediate',
      'setInterval',
      'clearInterval',
      'Date',
      'performance',
      'hrtime',
      'queueMicrotask',
    ],
  })
  onTestFinished(() => void vi.useRealTimers())
  const { a, b, server } = await pair(uri(), { idleTimeout: 20 }, { heartbeat: 10, ...READ_FROM })
  const got: number[] = []
  b.messages.subscribe(({ length }) => got.push(length))
  b.handle(({ data }) => (data.length === 0 ? new Promise(() => {}) : data))
  a.send(new Uint8Array(7))
  expect(await a.request(new Uint8Array([1]), { timeout: HANG_MS })).toEqual(new Uint8Array([1]))
  expect(got).toEqual([7])
  await a.transmit(new Uint8Array(LARGE), { timeout: HANG_MS })
  await expect(a.request(new Uint8Array(), { timeout: 20 })).rejects.toMatchObject({ code: 'ETIMEDOUT' })
  await until(a.states, 'open')
  const client = new RingClient(server.uri, { idleTimeout: 20, reconnect: { min: 1, max: 5 } })
  await until(client.states, 'idle')
  await client.close()
  using poller = new Poller(a.context)
  expect(poller.connections).toBe(0)
  await expect.poll(() => a.statistics().creditsReceived).toBeGreaterThan(0)
  await a.close({ drain: false })
  await server.close({ timeout: 20 })
})
