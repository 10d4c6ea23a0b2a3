import { beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import { sanitizedDeviceTests } from '../../machine/native.js'

/** What the program (test/native/device/ublk_smoke.cc) says of each check that held. */
const checks = [
  'one-replica',
  'iwarp',
  'compressed',
  'death',
  'hang',
  'early-answers',
  'failure',
  'hung-failure',
  'after-a-socket',
  'rest',
]
const deadlineMs = 900_000
/**
 * On one processor of the guest: where another guest wants the host's two as well, each of two emulated ones waits for the
 * other in turn, and the two programs take 270 s instead of 160. A soak has time for both.
 */
const onOne = process.env.RDMAKIT_TIER === 'soak' ? [] : ['taskset', '-c', '0']

describe.each(Object.entries(sanitizedDeviceTests))(
  'the block engine on a device of ublk, with %s',
  (_, program) => {
    let report = ''

    beforeAll(async () => {
      const { status, stdout, stderr } = await new LocalShell().exec([...onOne, program], { deadlineMs })
      report = `${stdout}${stderr}exit status ${status}`
    }, deadlineMs + 10_000)

    test.each(checks)('%s', (check) => {
      expect(report).toMatch(new RegExp(`^ok ${check}$`, 'm'))
    })

    test('it ends well', () => {
      expect(report).toMatch(/^exit status 0$/m)
    })
  },
)
