// A link that breaks repeatedly: 15 s of processor time. npm run soak breaks the link more often than a volume has indexes
// for servers (1,024), and that of a volume that is not thin beside it.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { effort, patience } from '../../../../test/effort.js'
import { Wire } from '../../../../test/wire.js'
import { ADDRESSES, serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { eventually, startVolume, temporaryFolder, Workload } from '../helpers/volume-client.js'

const BREAKS = effort(300)
/** By then all that is allocated once is there. */
const WARM = 100
/** One queue pair that stays has twice as much; what the garbage collector has not looked at yet is less. */
const LEAK_BYTES_A_BREAK = 100 * 1024
/** More than are open at a time: what is answered after so many began after the break. */
const ANSWERS = 32

/** Of the process `pid`: what it has open, and bytes of its memory that no file backs. */
function uses(pid: number): { descriptors: number; bytes: number } {
  const [, kibibytes] = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? []
  return { descriptors: readdirSync(`/proc/${pid}/fd`).length, bytes: Number(kibibytes) * 1024 }
}

/** One volume, of which every WRITE is known. */
async function live(thin: boolean): Promise<void> {
  const { server, uri } = await serve(8, ADDRESSES.iwarp())
  const wire = await Wire.to(uri)
  onTestFinished(() => wire.close())
  const place = { state: temporaryFolder(), servers: [wire.uri], replicas: 1, thin }
  const volume = startVolume(place)
  await volume.ready()
  const pid = volume.process.pid as number
  const workload = new Workload()
  const running = workload.run(volume)
  const broken = async () => {
    let warm = uses(pid)
    let most = 0
    for (let count = 1; count <= BREAKS; count++) {
      const { written } = workload
      wire.break()
      await eventually(() => volume.closed || workload.written > written + ANSWERS)
      if (volume.closed) throw new Error(`after ${count} breaks ${await volume.account()}`)
      if (count === WARM) warm = uses(pid)
      if (count > WARM) most = Math.max(most, uses(pid).descriptors)
    }
    workload.stop()
    return { warm, most }
  }
  const [{ warm, most }] = await Promise.all([broken(), running])
  expect(await workload.verify(volume)).toBe(0)
  const last = uses(pid)
  // At any time: what is left to the garbage collector would pile up in between.
  expect(most - warm.descriptors).toBeLessThan(16)
  expect(last.descriptors - warm.descriptors).toBeLessThan(16)
  expect((last.bytes - warm.bytes) / (BREAKS - WARM)).toBeLessThan(LEAK_BYTES_A_BREAK)
  // The lowest that is free: one that a break kept would not be had again.
  const [{ index }] = JSON.parse(readFileSync(join(place.state, 'volume.json'), 'utf8')).servers
  expect(index).toBeLessThan(16)
  expect(server.sessions).toBe(1)
  expect(await volume.end('SIGTERM')).toBe(0)
}

const volumes = process.env.RDMAKIT_TIER === 'soak' ? [true, false] : [true]

it(
  `${BREAKS} breaks of its link, and a volume that is written lives through them`,
  () => Promise.all(volumes.map(live)),
  patience(400_000),
)
