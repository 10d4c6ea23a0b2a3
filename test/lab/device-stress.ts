import { join } from 'node:path'
import { Guest } from './guest.js'
import type { LabParts } from './lab-parts.js'
import { buildSanitized } from './native.js'
import { guestScripts } from './paths.js'

/** What the program says of each check that held. */
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
const deadlineMs = 300_000

/**
 * The native test that wants a driver of the kernel (test/native/device/ublk_smoke.cc), under AddressSanitizer with
 * UndefinedBehaviorSanitizer and under ThreadSanitizer, in a guest. 0 when all held.
 */
export async function deviceStressCommand(parts: LabParts, say: (line: string) => void): Promise<number> {
  const programs = await buildSanitized('ublk_smoke', say)
  await using guest = await Guest.boot(parts)
  await guest.run(['sh', join(guestScripts, 'ublk.sh'), parts.modules.ublk])
  let failed = 0
  for (const program of programs) {
    const started = performance.now()
    const { status, stdout, stderr } = await guest.exec([program], { deadlineMs })
    const missing = checks.filter((check) => !stdout.split('\n').includes(`ok ${check}`))
    const seconds = ((performance.now() - started) / 1000).toFixed(0)
    if (status === 0 && missing.length === 0) {
      say(`${program}: ${checks.length} checks held, ${seconds} s`)
      continue
    }
    failed++
    say(`${program} ended with ${status} after ${seconds} s, without ${missing.join(', ')}`)
    say(`${stdout}${stderr}\n${await guest.run('dmesg | tail -n 30')}`)
  }
  return failed > 0 ? 1 : 0
}
