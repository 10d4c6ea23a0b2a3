// What one process does with itself at both ends, on one thread: the work of a message, without the wait for another core.
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { acceptRing, Poller, RingConnection, type RingOptions } from '@rdmakit/ring-transport'
import { ConnectionId, type Context, Listener } from '@rdmakit/verbs'

export interface MicroCase {
  readonly name: string
  /** operations of one call of `run`: a call is timed as a whole */
  readonly batch: number
  /** @param folder for sockets */
  start(folder: string): Promise<Running>
}

interface Running {
  run(): void | Promise<void>
  end(): Promise<void>
}

const SIZE = 64
const MANY = 100
const BATCH = 1000

/** Two ends of one connection over shm, each with a poller that only this program turns. */
async function ends(folder: string) {
  const options = (context: Context): RingOptions => ({ poller: new Poller(context, { mode: 'caller' }) })
  let accepted: (connection: RingConnection) => void = () => {}
  const other = new Promise<RingConnection>((resolve) => {
    accepted = resolve
  })
  const uri = `shm://${join(folder, 'micro.sock')}`
  const listener = await Listener.listen(uri, async (request) =>
    accepted(await acceptRing(request, options(request.id.context))),
  )
  const id = await ConnectionId.resolve(uri)
  const near = await RingConnection.connect(uri, options(id.context))
  const far = await other
  id.close()
  const end = async () => {
    await Promise.all([near, far].map((connection) => connection.close({ drain: false })))
    listener.close()
  }
  return { near, far, end }
}

/** Room comes as the far end takes; a near end that is never drained would not hear of it. */
function put(near: RingConnection, far: RingConnection, send: () => boolean, take: () => void): void {
  while (!send()) {
    far.drain(take)
    near.drain(ignore)
  }
}

const ignore = () => {}

/** A case of the ring: `count` messages are sent, flushed, and taken. */
const exchange = (
  name: string,
  count: number,
  sender: (near: RingConnection) => () => boolean,
): MicroCase => ({
  name,
  batch: BATCH,
  start: async (folder) => {
    const { near, far, end } = await ends(folder)
    const send = sender(near)
    const run = () => {
      let taken = 0
      const take = () => {
        taken++
      }
      for (let i = 0; i < BATCH; i += count) {
        for (let j = 0; j < count; j++) put(near, far, send, take)
        near.flush()
        far.drain(take)
      }
      // Some wait for the near end to hear of room, or of the next window of the ring.
      for (let looks = 0; taken < BATCH; looks++) {
        if (looks === BATCH) throw new Error(`${taken} of ${BATCH} messages came`)
        near.drain(ignore)
        far.drain(take)
      }
      near.drain(ignore)
    }
    return { run, end }
  },
})

const plain = (near: RingConnection) => {
  const message = randomBytes(SIZE)
  return () => near.send(message)
}

const inPlace = (near: RingConnection) => () => {
  const at = near.place(SIZE)
  if (at < 0) return false
  near.outgoing[at] = 1
  near.commit()
  return true
}

const idleDrain: MicroCase = {
  name: 'ring, a drain that finds nothing',
  batch: BATCH,
  start: async (folder) => {
    const { near, end } = await ends(folder)
    const run = () => {
      for (let i = 0; i < BATCH; i++) near.drain(ignore)
    }
    return { run, end }
  },
}

/** Both handshakes, of shm and of the ring, and the memory of both ends. */
const connectAndClose: MicroCase = {
  name: 'ring, connect and close',
  batch: 1,
  start: async (folder) => {
    const uri = `shm://${join(folder, 'handshake.sock')}`
    const listener = await Listener.listen(uri, async (request) => {
      await acceptRing(request)
    })
    const run = async () => {
      const connection = await RingConnection.connect(uri)
      await connection.close({ drain: false })
    }
    return { run, end: async () => listener.close() }
  },
}

const request: MicroCase = {
  name: 'ring, a request and its answer, from one event loop',
  batch: MANY,
  start: async (folder) => {
    const uri = `shm://${join(folder, 'request.sock')}`
    const listener = await Listener.listen(uri, async (incoming) => {
      const far = await acceptRing(incoming)
      far.handle((asked) => asked.data)
    })
    const near = await RingConnection.connect(uri)
    const question = randomBytes(SIZE)
    const run = async () => {
      await Promise.all(Array.from({ length: MANY }, () => near.request(question)))
    }
    const end = async () => {
      await near.close()
      listener.close()
    }
    return { run, end }
  },
}

export const CASES: readonly MicroCase[] = [
  idleDrain,
  exchange('ring, send and drain one of 64 B', 1, plain),
  exchange('ring, send and drain 100 of 64 B', MANY, plain),
  exchange('ring, place, commit and drain 100 of 64 B', MANY, inPlace),
  request,
  connectAndClose,
]
