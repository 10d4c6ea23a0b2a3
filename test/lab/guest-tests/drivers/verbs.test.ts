import { beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { deviceTest } from '../../machine/native.js'

// The ibverbs provider's verbs on Soft-RoCE, without a connection manager. The program says "ok NAME" of
// each check that held, "no NAME: why" where the device says that it cannot, and ends at the first failure.
describe('the verbs of an InfiniBand device, on rxe', () => {
  let report = ''

  beforeAll(async () => {
    const { status, stdout, stderr } = await new LocalShell().exec([deviceTest, 'rxe0'], {
      deadlineMs: 120_000,
    })
    report = `${stdout}${stderr}exit status ${status}`
  }, 130_000)

  for (const check of [
    'gids',
    'extended-queue',
    'shared-receive-queue',
    'resize',
    'reliable',
    'flushed',
    'atomics',
    'unreliable',
    'datagram',
    'memory-window',
    'multicast',
    'overflow-event',
  ]) {
    test(check, () => expect(report.split('\n')).toContain(`ok ${check}`))
  }

  // rxe learned it in Linux 6.6: either way what the device says of itself must hold.
  test('reregister, or the truth about it', () => expect(report).toMatch(/^(ok|no) reregister/m))

  test('all of them to the end', () => expect(report).toMatch(/exit status 0$/))
})
