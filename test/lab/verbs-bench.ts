import { Guest } from './guest.js'
import type { LabParts } from './lab-parts.js'
import { buildVerbsBenchmarks, verbsPingpong } from './native.js'
import { devicesOf, perftestLatency, pingpong, spread } from './perftest.js'

const rounds = 5
/** What ours may take of perftest's time. */
const limit = 1.05

const tests = [
  { ours: 'write-lat', perftest: 'ib_write_lat' },
  { ours: 'send-lat', perftest: 'ib_send_lat' },
] as const

/**
 * Half a round trip of 64 bytes on each of a guest's devices, from one process of it to another: our
 * native layer beside perftest, in turn. rxe needs perftest's `-x`, an iWARP device (siw) `-R`.
 */
export async function verbsBench(parts: LabParts, print: (line: string) => void): Promise<void> {
  await buildVerbsBenchmarks()
  await using guest = await Guest.boot(parts)
  await guest.run(['sh', 'test/lab/guest/rxe.sh', 'veth', '10.77.0.1'])
  await guest.run(['sh', 'test/lab/guest/siw.sh', parts.modules.siw])
  for (const device of await devicesOf(guest)) {
    for (const { ours, perftest } of tests) {
      const pairs: { ours: number; theirs: number }[] = []
      for (let round = 0; round < rounds; round++) {
        pairs.push({
          ours: await pingpong(guest, verbsPingpong, device, ours),
          theirs: await perftestLatency(guest, device, perftest),
        })
      }
      const mine = spread(pairs.map((pair) => pair.ours))
      const theirs = spread(pairs.map((pair) => pair.theirs))
      const ratio = mine.median / theirs.median
      print(
        `${device.name} 64 B: ${ours} ${mine.text} µs, ${perftest} ${theirs.text} µs, ` +
          `ratio ${ratio.toFixed(3)} (limit ${limit}: ${ratio <= limit ? 'held' : 'missed'})`,
      )
    }
  }
}
