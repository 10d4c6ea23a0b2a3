// Leaves with ring connections alive, in one of several ways: `exits.mjs <way> <uri>`. In every thread there are two
// connections for each kind of poller, with messages under way both ways.
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { Poller, RingConnection, RingServer } from '@rdmakit/ring-transport'
import { listDevices, openDevice } from '@rdmakit/verbs'

const [way, uri] = isMainThread ? process.argv.slice(2) : [workerData.way, workerData.uri]

/** Connections that never rest. Resolves when each has carried something. */
async function busy() {
  const provider = uri.slice(0, uri.indexOf(':'))
  const device = listDevices().find((one) => one.provider === provider)
  const carried = []
  for (const [i, mode] of ['poll', 'event', 'adaptive', 'caller'].entries()) {
    const poller = new Poller(openDevice(device.name, provider), { mode })
    const server = await RingServer.listen(
      uri.replace('%', `${mode}-${isMainThread ? 0 : workerData.number}`),
      {
        poller,
        onConnection: (connection) => {
          connection.handle((request) => request.copy())
          connection.messages.subscribe((message) => connection.send(message.data))
        },
      },
    )
    const connection = await RingConnection.connect(server.uri, { poller })
    carried.push(
      new Promise((resolve) => {
        let seen = 0
        connection.messages.subscribe((message) => {
          if (++seen === 100) resolve()
          connection.send(message.data)
        })
      }),
    )
    for (let one = 0; one < 20; one++) connection.send(new Uint8Array(100 + i))
    void connection.request(new Uint8Array(10)).catch(() => {})
  }
  await Promise.all(carried)
}

if (!isMainThread) {
  await busy()
  parentPort.postMessage('busy')
  if (way === 'worker-exits') process.exit(0)
  if (way === 'worker-throws') throw new Error('as it should')
} else if (way.startsWith('worker')) {
  const workers = [1, 2].map(
    (number) => new Worker(new URL(import.meta.url), { workerData: { way, uri, number } }),
  )
  const gone = workers.map((worker) => new Promise((resolve) => worker.once('exit', resolve)))
  for (const worker of workers) worker.on('error', () => {})
  await Promise.all(workers.map((worker) => new Promise((resolve) => worker.once('message', resolve))))
  await busy()
  if (way === 'worker-terminated') for (const worker of workers) void worker.terminate()
  if (way !== 'worker-left') await Promise.all(gone)
  // Those of the main thread are alive still.
  process.exit(0)
} else {
  await busy()
  if (way === 'exits') process.exit(0)
  if (way === 'throws') throw new Error('as it should')
  if (way === 'ends')
    // Nothing keeps the event loop, but the connections do; they are left to the end of the process.
    process.kill(process.pid, 'SIGTERM')
}
