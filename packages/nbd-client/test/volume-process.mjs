// A volume in a process of its own, that a test can kill: `node volume-process.mjs '<JSON>'`, the client's
// sockets, in transmission phase, at the descriptors 3, 4 … Says "ready" when it serves them.
import { writeSync } from 'node:fs'
import { StateFolder } from '../dist/state-folder.js'
import { Volume } from '../dist/volume.js'
import { VolumeKeeper } from '../dist/volume-keeper.js'

const { state, servers, size, lanes, replicas, backup } = JSON.parse(process.argv[2])
const folder = StateFolder.open(state)
const kept = folder.read()
const keeper = new VolumeKeeper(folder, { size, replicas }, kept)
const options = { servers, size, lanes, replicas, ...keeper.options(60_000, backup) }
if (backup !== undefined) options.engine.acknowledge = 'backup'
let volume
if (kept === undefined) {
  volume = await Volume.open(options)
} else {
  const taken = await Volume.takeOver(options, kept)
  volume = taken.volume
  const { degraded, backedUp, lost } = taken.adopted
  process.stdout.write(`degraded ${degraded} lost ${lost}\n`)
  if (backup !== undefined) process.stdout.write(`backed up ${backedUp}\n`)
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
volume.engine.on('slabRefilled', () => {
  if (volume.slabs.backup === 0) process.stdout.write('refilled\n')
})
process.on('SIGTERM', async () => {
  await volume.close()
  folder.clear()
  process.exit(0)
})
// A volume alone does not keep Node alive; nobody but the test ends this process.
setInterval(() => {}, 60_000)
