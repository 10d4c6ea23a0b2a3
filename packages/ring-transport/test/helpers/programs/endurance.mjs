// One end of an endurance test in a process of its own: `endurance.mjs receive <runs>` listens and checks every word of
// every message, `endurance.mjs send <runs>` sends them, one run after the other. Both know them from one generator. A
// run is {uri, messages, mode}; the mode is that of their poller: in `caller` they poll, else they wait. The
// address and the counts are sent to the parent.
import { Poller, RingConnection, RingServer } from '@rdmakit/ring-transport'
import { listDevices, openDevice } from '@rdmakit/verbs'

const [role, json] = process.argv.slice(2)
const runs = JSON.parse(json)
const turn = () => new Promise((resolve) => setImmediate(resolve))

function pollerOf({ uri, mode }) {
  const provider = uri.slice(0, uri.indexOf(':'))
  const device = listDevices().find((one) => one.provider === provider)
  return new Poller(openDevice(device.name, provider), { mode })
}

/** The words of all messages of a run, one after another (xorshift32), and the sum of those that were seen. */
class Words {
  checksum = 0
  #state = 0x9e3779b9

  next() {
    let state = this.#state
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    this.#state = state
    return state
  }

  add(value) {
    this.checksum = (Math.imul(this.checksum, 31) + value) | 0
  }
}

/** Listens for one run. @returns where, and what ends when its connection has */
async function receive(run) {
  const { uri, messages, mode } = run
  const poller = pollerOf(run)
  const stream = new Words()
  let received = 0
  let wrong = 0
  let bytes = 0
  let firstWrong
  let view
  const check = (memory, offset, length, immediate) => {
    if (view === undefined || view.buffer !== memory.buffer) view = new DataView(memory.buffer)
    const first = stream.next()
    const words = 2 + (first & 7)
    if (length !== words * 4 || immediate !== received >>> 0) {
      wrong++
      firstWrong ??= { message: received, length, expected: words * 4, immediate }
    }
    let value = first
    for (let at = 0; at < length; at += 4) {
      const found = view.getInt32(memory.byteOffset + offset + at, true)
      if (found !== value) wrong++
      stream.add(found)
      if (at + 4 < length) value = stream.next()
    }
    bytes += length
    received++
  }
  let finish
  const finished = new Promise((resolve) => {
    finish = resolve
  })
  const server = await RingServer.listen(uri, {
    poller,
    onConnection: async (connection) => {
      let counted
      const all = new Promise((resolve) => {
        counted = resolve
      })
      connection.handle(async () => {
        await all
        return Buffer.from(JSON.stringify({ received, wrong, bytes, checksum: stream.checksum, firstWrong }))
      })
      if (mode === 'caller') {
        const take = (message) => check(message.bytes, message.offset, message.length, message.immediate)
        while (received < messages && connection.isOpen) {
          for (let i = 0; i < 1000 && received < messages; i++) connection.drain(take)
          await turn()
        }
      } else {
        for await (const batch of connection.viewBatches()) {
          for (const { data, immediate } of batch) check(data, 0, data.length, immediate)
          if (received === messages) break
        }
      }
      counted()
      await connection.closed
      finish()
    },
  })
  const close = async () => {
    await finished
    await server.close()
    poller.close()
  }
  return { uri: server.uri, closed: close() }
}

/** Sends all of one run. @returns what the receiver counted, and whether that is what was sent */
async function send(run) {
  const { uri, messages, mode } = run
  const poller = pollerOf(run)
  const stream = new Words()
  const connection = await RingConnection.connect(uri, { poller, timeout: 50_000 })
  const memory = connection.outgoing
  const view = new DataView(memory.buffer, memory.byteOffset, memory.length)
  let stalls = 0
  for (let i = 0; i < messages; i++) {
    const first = stream.next()
    const length = (2 + (first & 7)) * 4
    let at
    for (let tries = 0; ; tries++) {
      at = connection.place(length)
      if (at >= 0) break
      stalls++
      if (mode === 'caller' && tries < 1000) poller.drain()
      else await connection.writable()
    }
    let value = first
    for (let to = 0; to < length; to += 4) {
      view.setInt32(at + to, value, true)
      stream.add(value)
      if (to + 4 < length) value = stream.next()
    }
    connection.commit(i >>> 0)
  }
  connection.flush()
  const answer = await connection.request(Buffer.from('what did you count?'), { timeout: 240_000 })
  const { received, wrong, bytes, checksum, firstWrong } = JSON.parse(Buffer.from(answer).toString())
  await connection.close()
  poller.close()
  return { received, wrong, bytes, same: checksum === stream.checksum, stalls, firstWrong }
}

if (role === 'receive') {
  const receivers = await Promise.all(runs.map(receive))
  process.send(receivers.map(({ uri }) => uri))
  await Promise.all(receivers.map(({ closed }) => closed))
} else {
  const counted = []
  for (const run of runs) counted.push(await send(run))
  process.send(counted)
}
process.disconnect()
