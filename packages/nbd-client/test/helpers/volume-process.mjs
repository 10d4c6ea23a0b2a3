// A volume in a process of its own, that a test can kill: `node volume-process.mjs '<JSON>'`, the client's
// sockets, in transmission phase, at the descriptors 3, 4 … Says "ready" when it serves them. SIGHUP lets it start a
// successor, the next SIGHUP lets it hand over to that one; TEST_SUCCESSOR and TEST_PREDECESSOR say where these fail, and
// TEST_PREDECESSOR=old makes the first one a program that knows no take-over numbers.
import { writeSync } from 'node:fs'
import { Volume } from '../../dist/engine/block-volume.js'
import { closeDescriptor } from '../../dist/kernel/kernel.js'
import { handOver } from '../../dist/upgrade/hand-over.js'
import { Predecessor } from '../../dist/upgrade/predecessor.js'
import { StateFolder } from '../../dist/upgrade/state-folder.js'
import { Successor } from '../../dist/upgrade/successor.js'
import { VolumeKeeper } from '../../dist/upgrade/volume-keeper.js'

const { state, servers, size, lanes, replicas, thin, backup, compress } = JSON.parse(process.argv[2])
const predecessor = Predecessor.find()
const old = process.env.TEST_PREDECESSOR === 'old' && predecessor === undefined
const say = (line) => writeSync(1, `${line}\n`)

async function failAt(step) {
  if (predecessor === undefined || process.env.TEST_SUCCESSOR === undefined) return
  if (process.env.TEST_SUCCESSOR === `${step} dies`) process.kill(process.pid, 'SIGKILL')
  if (process.env.TEST_SUCCESSOR === `${step} hangs`) await new Promise(() => setInterval(() => {}, 60_000))
}

await failAt('start')
const inheritance = await predecessor?.inheritance()
if (predecessor !== undefined && inheritance === undefined) {
  say('alone')
  process.exit(1)
}
await failAt('go')
const folder = inheritance ? StateFolder.inherit(state, inheritance.lock) : StateFolder.open(state)
let volume

function options(keeper) {
  const { engine, ...rest } = keeper.options(60_000, backup, compress)
  return {
    ...rest,
    ...(old ? { raise: undefined } : {}),
    reconnect: 30_000,
    engine: { ...engine, compress, acknowledge: backup === undefined ? 'all' : 'backup' },
  }
}

async function takeUp(kept, handedOver = false) {
  if (old && kept.takeOver !== undefined) throw new Error('it has a field "takeOver" that is unknown')
  const keeper = new VolumeKeeper(folder, kept, kept)
  const raise = old ? undefined : () => keeper.raise(handedOver)
  const taken = await Volume.takeOver({ servers, size, lanes, replicas, ...options(keeper), raise }, kept)
  if (compress !== undefined && compress !== 'none') keeper.compresses()
  folder.forgetUnused({ checksums: true, backup })
  return taken
}

const kept = folder.read()
if (kept === undefined) {
  const keeper = new VolumeKeeper(folder, { size, replicas, thin })
  volume = await Volume.open({ servers, size, lanes, replicas, thin, ...options(keeper) })
} else {
  const taken = await takeUp(kept, predecessor !== undefined)
  volume = taken.volume
  const { degraded, backedUp, lost } = taken.adopted
  say(`degraded ${degraded} lost ${lost}`)
  if (backup !== undefined) say(`backed up ${backedUp}`)
}
await failAt('resumed')
if (predecessor === undefined) {
  for (let lane = 0; lane < lanes; lane++) volume.engine.attachSocket(lane, 3 + lane)
  // The lanes have their own: an end that this process holds would hide theirs.
  for (let lane = 0; lane < lanes; lane++) closeDescriptor(3 + lane)
} else {
  await predecessor.taken()
  await failAt('taken')
  for (const [lane, socket] of inheritance.sockets) {
    volume.engine.attachSocket(lane, socket)
    closeDescriptor(socket)
  }
  predecessor.serving()
}
if (kept !== undefined) volume.start()

process.on('SIGUSR2', () => {
  // "away 0": JavaScript hears of the failure first. Else never: nothing but the lanes goes on.
  const [, away, server = 1] = /^(away )?(\d+)$/.exec(process.env.TEST_FAILS ?? '') ?? []
  const standStill = () => {
    writeSync(1, 'failed\n')
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
  }
  if (away) volume.onServerFailure(standStill)
  volume.engine.failServer(Number(server), 'the test said so')
  if (!away) standStill()
})
// A connection that ends while a test runs: why.
volume.engine.on('connectionClosed', ({ lane, reason }) => say(`connection of lane ${lane} over: ${reason}`))
volume.engine.on('slabRefilled', () => {
  if (volume.slabs.backup === 0) say('refilled')
})
let handOn
process.on('SIGHUP', async () => {
  if (handOn !== undefined) return handOn()
  let successor
  const asked = new Promise((resolve) => {
    handOn = resolve
  })
  try {
    // A machine that is busy starts a program slowly; one that is to hang is not waited for.
    const patience = process.env.TEST_SUCCESSOR === 'start hangs' ? 2_000 : 50_000
    successor = await Successor.start(undefined, { patience })
    say('prepared')
    await asked
  } catch (failure) {
    return say(`not started: ${failure.message}`)
  } finally {
    handOn = undefined
  }
  const dying = () => process.kill(process.pid, 'SIGKILL')
  if (process.env.TEST_PREDECESSOR === 'go') successor.give = dying
  if (process.env.TEST_PREDECESSOR === 'yours') successor.commit = dying
  const outcome = await handOver({
    volume,
    folder,
    successor,
    answerTimeout: 50_000,
    serveTimeout: process.env.TEST_SUCCESSOR === 'taken hangs' ? 500 : 50_000,
    retake: async () => (await takeUp(folder.read())).volume,
  })
  if (outcome.over) {
    say(`over ${outcome.pause}`)
    process.exit(0)
  }
  const same = volume === outcome.volume
  volume = outcome.volume
  if (!same) volume.start()
  say(`kept ${outcome.lost.length === 0 ? 'kept' : 'dead'} ${outcome.pause} ${outcome.reason}`)
})
process.on('SIGTERM', async () => {
  await volume.close()
  folder.clear()
  process.exit(0)
})
// Only the test ends this process, also where its volume was closed.
setInterval(() => {}, 60_000)
// After this line the test may send signals.
say(predecessor ? `successor ${process.pid}` : 'ready')
