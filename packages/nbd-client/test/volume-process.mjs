// A volume in a process of its own, that a test can kill: `node volume-process.mjs '<JSON>'`, the client's
// sockets, in transmission phase, at the descriptors 3, 4 … Says "ready" when it serves them.
import { writeSync } from 'node:fs'
import { StateFolder } from '../dist/state-folder.js'
import { Volume } from '../dist/volume.js'
import { VolumeKeeper } from '../dist/volume-keeper.js'

const { state, servers, size, lanes, replicas, thin } = JSON.parse(process.argv[2])
const folder = StateFolder.open(state)
const kept = folder.read()
const keeper = new VolumeKeeper(folder, { size, replicas, thin }, kept)
const options = { servers, size, lanes, replicas, thin, ...keeper.options(60_000) }
let volume
if (kept === undefined) {
  volume = await Volume.open(options)
} else {
  const taken = await Volume.takeOver(options, kept)
  volume = taken.volume
  process.stdout.write(`degraded ${taken.adopted.degraded} lost ${taken.adopted.lost}\n`)
}
for (let lane = 0; lane < lanes; lane++) volume.engine.attachSocket(lane, 3 + lane)
if (kept !== undefined) volume.start()
process.stdout.write('ready\n')
process.on('SIGUSR2', () => {
  // Nothing but the lanes goes on from here: JavaScript never hears of the failure.
  volume.engine.failServer(1, 'the test said so')
  writeSync(1, 'failed\n')
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60_000)
})
process.on('SIGTERM', async () => {
  await volume.close()
  folder.clear()
  process.exit(0)
})
// A volume alone does not keep Node alive; nobody but the test ends this process.
setInterval(() => {}, 60_000)
