// One end of a soak in a process of its own: `soak.mjs receive <uri> <messages> <mode>` listens and checks every word
// of every message, `soak.mjs send <uri> <messages> <mode>` sends them. Both know them from one generator. The mode
// is that of their poller; in `caller` they poll, else they wait. The last line is what was counted, as JSON.
import { Poller, RingConnection, RingServer } from '@rdmakit/ring-transport'
import { listDevices, openDevice } from '@rdmakit/verbs'

const [role, uri, count, mode] = process.argv.slice(2)
const messages = Number(count)
const provider = uri.slice(0, uri.indexOf(':'))
const device = listDevices().find((one) => one.provider === provider)
const poller = new Poller(openDevice(device.name, provider), { mode })
const turn = () => new Promise((resolve) => setImmediate(resolve))

/** xorshift32: the words of all messages, one after another */
let state = 0x9e3779b9
function word() {
  state ^= state << 13
  state ^= state >>> 17
  state ^= state << 5
  return state
}

let checksum = 0
const sum = (value) => {
  checksum = (Math.imul(checksum, 31) + value) | 0
}

if (role === 'receive') {
  let received = 0
  let wrong = 0
  let bytes = 0
  let firstWrong
  let view
  const check = (memory, offset, length, immediate) => {
    if (view === undefined || view.buffer !== memory.buffer) view = new DataView(memory.buffer)
    const first = word()
    const words = 2 + (first & 7)
    if (length !== words * 4 || immediate !== received >>> 0) {
      wrong++
      firstWrong ??= { message: received, length, expected: words * 4, immediate }
    }
    let value = first
    for (let at = 0; at < length; at += 4) {
      const found = view.getInt32(memory.byteOffset + offset + at, true)
      if (found !== value) wrong++
      sum(found)
      if (at + 4 < length) value = word()
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
        return Buffer.from(JSON.stringify({ received, wrong, bytes, checksum, firstWrong }))
      })
      if (mode === 'caller') {
        const take = (message) => check(message.bytes, message.offset, message.length, message.immediate)
        while (received < messages && connection.isOpen) {
          for (let i = 0; i < 1000 && received < messages; i++) connection.drain(take)
          await turn()
        }
      } else {
        for await (const batch of connection.batches()) {
          for (const { data, immediate } of batch) check(data, 0, data.length, immediate)
          if (received === messages) break
        }
      }
      counted()
      await connection.closed
      finish()
    },
  })
  process.send({ uri: server.uri })
  await finished
  await server.close()
  poller.close()
} else {
  const connection = await RingConnection.connect(uri, { poller })
  const memory = connection.outgoing
  const view = new DataView(memory.buffer, memory.byteOffset, memory.length)
  let stalls = 0
  for (let i = 0; i < messages; i++) {
    const first = word()
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
      sum(value)
      if (to + 4 < length) value = word()
    }
    connection.commit(i >>> 0)
  }
  connection.flush()
  const answer = await connection.request(Buffer.from('what did you count?'), { timeout: 60_000 })
  const { received, wrong, bytes, checksum: theirs, firstWrong } = JSON.parse(Buffer.from(answer).toString())
  process.send({ received, wrong, bytes, same: theirs === checksum, stalls, firstWrong })
  await connection.close()
  poller.close()
}
