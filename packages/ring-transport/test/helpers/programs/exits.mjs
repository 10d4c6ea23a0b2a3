// Leaves with ring connections alive, in one of several ways: `exits.mjs <way> <uri>`; `workers` are left in each of
// several ways, which it prints with their exit codes, one after the other. In every thread there are two
// connections for each kind of poller, with messages under way both ways: few, and none before all are there, as what
// never rests keeps those that begin from their work.
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { Poller, RingConnection, RingServer } from '@rdmakit/ring-transport'
import { listDevices, openDevice } from '@rdmakit/verbs'

const [way, uri] = isMainThread ? process.argv.slice(2) : [workerData.way, workerData.uri]

/** Connections that never rest. Resolves when each has carried something. */
async function busy() {
  const provider = uri.slice(0, uri.indexOf(':'))
  const device = listDevices().find((one) => one.provider === provider)
  const connections = []
  // The one that never sleeps comes last.
  for (const mode of ['event', 'adaptive', 'caller', 'guarded', 'poll']) {
    const poller = new Poller(openDevice(device.name, provider), { mode })
    const server = await RingServer.listen(
      uri.replace('%', `${mode}-${isMainThread ? 'main' : workerData.number}`),
      {
        poller,
        onConnection: (connection) => {
          connection.handle((request) => request.copy())
          connection.messages.subscribe((message) => connection.send(message.data))
        },
      },
    )
    connections.push(await RingConnection.connect(server.uri, { poller, timeout: 20_000 }))
  }
  await Promise.all(
    connections.map(async (connection, i) => {
      const carried = new Promise((resolve) => {
        let seen = 0
        connection.messages.subscribe((message) => {
          if (++seen === 20) resolve()
          connection.send(message.data)
        })
      })
      for (let one = 0; one < 20; one++) connection.send(new Uint8Array(100 + i))
      void connection.request(new Uint8Array(10)).catch(() => {})
      await carried
    }),
  )
}

/** The next message from or to a worker. */
const message = (port) => new Promise((resolve) => port.once('message', resolve))

if (!isMainThread) {
  const begin = message(parentPort)
  parentPort.postMessage('loaded')
  await begin
  await busy()
  const end = message(parentPort)
  parentPort.postMessage('busy')
  await end
  if (way === 'exits') process.exit(0)
  if (way === 'throws') throw new Error('as it should')
} else if (way === 'workers') {
  const workers = ['exits', 'throws', 'terminated', 'left'].map((way, number) => {
    const worker = new Worker(new URL(import.meta.url), { workerData: { way, uri, number } })
    worker.on('error', () => {})
    return { way, worker, loaded: message(worker) }
  })
  await Promise.all(workers.map(({ loaded }) => loaded))
  const begun = workers.map(({ worker }) => message(worker))
  for (const { worker } of workers) worker.postMessage('begin')
  await Promise.all([busy(), ...begun])
  for (const { way, worker } of workers) {
    if (way === 'left') break
    const gone = new Promise((resolve) => worker.once('exit', resolve))
    if (way === 'terminated') void worker.terminate()
    else worker.postMessage('end')
    console.log(`${way}: ${await gone}`)
  }
  // The last worker and those of the main thread are alive still.
  process.exit(0)
} else {
  await busy()
  if (way === 'exits') process.exit(0)
  if (way === 'throws') throw new Error('as it should')
  if (way === 'ends')
    // Nothing keeps the event loop, but the connections do; they are left to the end of the process.
    process.kill(process.pid, 'SIGTERM')
}
