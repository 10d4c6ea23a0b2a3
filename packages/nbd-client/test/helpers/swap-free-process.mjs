// A process that starts itself out of swap: swap-free-process.mjs ROOT PATH WORD…. Prints what it is then, and ends
// with 3. The first start notes in ROOT which descriptors it has.
import { appendFileSync, existsSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { startSwapFree } from '../../dist/attach/start-swap-free.js'
import { ControlGroup } from '../../dist/kernel/swap-free-group.js'

const [root, path, ...words] = process.argv.slice(2)

/** Those whose target says that they are the same in another life. */
const descriptors = () =>
  readdirSync('/proc/self/fd').flatMap((number) => {
    try {
      const target = readlinkSync(`/proc/self/fd/${number}`)
      return [`${number} ${target.replace(/^(pipe|socket):.*/, Number(number) < 5 ? '$&' : '$1')}`]
    } catch {
      return [] // of the listing itself
    }
  })

const own = join(root, `rdmakit-nbd-${process.pid}`)
const first = !existsSync(join(root, 'starts'))
appendFileSync(join(root, 'starts'), '.')
if (first) writeFileSync(join(root, 'descriptors'), JSON.stringify(descriptors()))
const now = descriptors()
// The kernel's file of this process would say where it is.
const moved = process.env.STAYS_IN ?? (existsSync(own) ? `/rdmakit-nbd-${process.pid}` : path)
const safety = await startSwapFree(new ControlGroup(root, moved))
process.stdout.write(
  JSON.stringify({
    starts: readFileSync(join(root, 'starts')).length,
    pid: process.pid,
    words,
    descriptors: now,
    variable: process.env.RDMAKIT_STARTED_AGAIN ?? null,
    ...safety,
  }),
)
process.exitCode = 3
