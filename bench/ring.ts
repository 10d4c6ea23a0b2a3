// Round trips of 64 bytes from JavaScript to JavaScript between two processes on loopback: the ring over
// iwarp:// in each waiting mode, beside Node net, in one run.
import { once } from 'node:events'
import { connect } from 'node:net'
import { fileURLToPath } from 'node:url'
import { Poller, type PollerMode, RingConnection } from '@rdmakit/ring-transport'
import { openDevice } from '@rdmakit/verbs'
import { Bench } from 'tinybench'
import { Child } from './child.js'
import { printTable } from './table.js'

const BYTES = 64
const MODES: readonly PollerMode[] = ['poll', 'adaptive', 'event']

/** Something that sends a message to the echo process and hears it back. */
interface Echo {
  roundTrip(): Promise<void>
  close(): Promise<void>
}

async function ringEcho(uri: string, mode: PollerMode): Promise<Echo> {
  const poller = new Poller(openDevice('iwarp0', 'iwarp'), { mode })
  const connection = await RingConnection.connect(uri, { poller })
  const payload = new Uint8Array(BYTES)
  let heard = () => {}
  connection.messages.subscribe(() => heard())
  return {
    roundTrip: () =>
      new Promise((resolve) => {
        heard = resolve
        connection.send(payload)
        connection.flush()
      }),
    close: async () => {
      await connection.close({ drain: false })
      poller.close()
    },
  }
}

async function tcpEcho(port: number): Promise<Echo> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true })
  await once(socket, 'connect')
  const payload = new Uint8Array(BYTES)
  let heard = () => {}
  let missing = 0
  socket.on('data', (bytes) => {
    missing -= bytes.length
    if (missing === 0) heard()
  })
  return {
    roundTrip: () =>
      new Promise((resolve) => {
        heard = resolve
        missing = BYTES
        socket.write(payload)
      }),
    close: async () => {
      socket.destroy()
    },
  }
}

export async function ring(): Promise<void> {
  const rows: [string, number, number, number, number][] = []
  for (const mode of MODES) {
    await using child = new Child(process.execPath, [
      fileURLToPath(new URL('ring-echo.js', import.meta.url)),
      mode,
    ])
    const [, uri, port] = await child.prints(/^ready (\S+) (\d+)$/m)
    const peers = { ring: await ringEcho(uri as string, mode), net: await tcpEcho(Number(port)) }
    const bench = new Bench({ time: 3000, warmupTime: 500 })
    bench.add(`ring over iwarp, ${mode}`, () => peers.ring.roundTrip())
    bench.add('Node net', () => peers.net.roundTrip())
    await bench.run()
    for (const { name, result } of bench.tasks) {
      if (!('latency' in result)) throw new Error(`${name} gave no result`)
      const { p50, p99, p999, samplesCount } = result.latency
      rows.push([name, p50 * 1000, p99 * 1000, p999 * 1000, samplesCount])
    }
    for (const peer of Object.values(peers)) await peer.close()
  }
  console.log(`\nround trip of ${BYTES} bytes, JavaScript to JavaScript, two processes, µs`)
  printTable(
    ['transport', 'p50', 'p99', 'p99.9', 'round trips', 'p50 / net'],
    rows.map((row, i) => [...row, row[1] / (rows[i | 1]?.[1] ?? Number.NaN)]),
  )
}
