import { openSync } from 'node:fs'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { serviceNotifications } from '../../src/service/service-manager.js'

beforeEach(() => void vi.stubEnv('NOTIFY_SOCKET', '/run/of/the/manager'))
afterEach(() => void vi.unstubAllEnvs())

it('tells a status of several lines as one, for the others would be assignments', async () => {
  const told: string[] = []
  const { notifyReady, notifyStatus } = serviceNotifications((_, state) => {
    told.push(state)
    // It ends at once.
    return openSync('/dev/null', 'r')
  })
  const failed = vi.fn()
  await notifyStatus('impaired: it said\n  MAINPID=1\n', failed)
  await notifyReady('serves\nSTOPPING=1', failed)
  expect(told).toEqual(['STATUS=impaired: it said MAINPID=1', 'READY=1\nSTATUS=serves STOPPING=1'])
})
