// Connects by names, in a network and with a hosts file of its own (names.test.ts). Prints what came of it.
import { constants, openSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { ConnectionId, Listener } from '@rdmakit/verbs'

const [, , scenario, fifo] = process.argv

/** Listens at an address, and connects to a name with the port of that. @returns where it led */
async function reach(address, name, options) {
  const listener = await Listener.listen(`iwarp://${address}:0`, async ({ id }) => {
    end(id)
    await id.accept()
    id.disconnected.then(() => id.close())
  })
  const { port } = new URL(listener.uri.replace(/%[^\]]*/, '').replace('iwarp:', 'http:'))
  try {
    const id = await ConnectionId.resolve(`iwarp://${name}:${port}`, options)
    end(id)
    await id.connect(options)
    const { peerUri } = id
    id.close()
    return peerUri.replace(`:${port}`, '')
  } finally {
    listener.close()
  }
}

function end(id) {
  const sendQueue = id.context.createCompletionQueue({ entries: 16 })
  id.createQueuePair(id.context.allocateProtectionDomain(), { sendQueue })
}

const failure = (work) =>
  work.then(
    () => 'it did',
    ({ code, name, message }) => code ?? `${name}: ${message}`,
  )

const scenarios = {
  addresses: async () => ({
    later: await reach('127.0.0.1', 'twofold'),
    earlier: await reach('[::1]', 'twofold'),
    silent: await reach('[fd00::1]', 'silent'),
    refused: await failure(reach('127.0.0.1', 'nobody')),
    scoped: await reach('[fe80::77%lo]', '[fe80::77%lo]'),
    escaped: await reach('[fe80::77%lo]', '[fe80::77%25lo]'),
    index: await reach('[fe80::77%1]', '[fe80::77%1]'),
    unknown: await failure(ConnectionId.resolve('iwarp://[fe80::77%none]:1')),
  }),
  // The only thread of libuv's pool waits for a writer.
  busy: async () => {
    const blocked = open(fifo, 'r')
    const abort = new AbortController()
    const aborted = failure(ConnectionId.resolve('iwarp://twofold:1', { signal: abort.signal }))
    abort.abort(new Error('enough'))
    const result = {
      late: await failure(ConnectionId.resolve('iwarp://twofold:1', { timeout: 20 })),
      aborted: await aborted,
      listen: await failure(Listener.listen('iwarp://twofold:0', () => {}, { timeout: 20 })),
      numeric: await reach('127.0.0.1', '127.0.0.1'),
    }
    openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK)
    await (await blocked).close()
    return result
  },
}

process.stdout.write(JSON.stringify(await scenarios[scenario]()))
