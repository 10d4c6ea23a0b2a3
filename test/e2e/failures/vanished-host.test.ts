// A host that is gone: packets to it get no answer, not even a refusal. Its processes are in a network
// namespace, whose interface is down then. Over iwarp that is ETIMEDOUT within the bound of
// packages/verbs/native/iwarp/README.md, whatever is outstanding; a stopped peer is not gone.
import { execFileSync, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { RingConnection, type RingOffer } from '@rdmakit/ring-transport'
import { type CompletionQueue, ConnectionId, type MemoryRegion, type QueuePair } from '@rdmakit/verbs'
import { beforeAll, expect, it, onTestFinished } from 'vitest'
import { stopProcess } from '../../stop-process.js'
import { endWithProcess } from '../helpers/processes.js'

/** Seconds, in the place of 20; read with the first connection. */
const SILENCE = 4
beforeAll(() => {
  process.env.RDMAKIT_IWARP_SILENCE = `${SILENCE}`
})

const ip = (...words: string[]) => execFileSync('ip', words)

/** Where vanishing-host.mjs listens, in this namespace or one of its own. */
async function startServer(launcher: readonly string[] = []) {
  const script = fileURLToPath(new URL('../helpers/vanishing-host.mjs', import.meta.url))
  const words = [...launcher, process.execPath, script]
  const server = endWithProcess(
    spawn(words[0] as string, words.slice(1), { stdio: ['ignore', 'pipe', 'inherit'] }),
  )
  onTestFinished(() => void server.kill('SIGKILL'))
  for await (const line of createInterface({ input: server.stdout }))
    return { process: server, ports: JSON.parse(line) as { verbs: number; ring: number } }
  throw new Error('the server has ended')
}

/** Such a server on a host of its own, which `vanish` takes away. */
async function startHost() {
  const { process: server, ports } = await startServer(['unshare', '--net'])
  const inside = (...words: string[]) =>
    execFileSync('nsenter', ['--target', `${server.pid}`, '--net', 'ip', ...words])
  const [near, far] = [`rk${process.pid}a`, `rk${process.pid}b`]
  const network = `10.251.${process.pid % 250}`
  ip('link', 'add', near, 'type', 'veth', 'peer', 'name', far, 'netns', `${server.pid}`)
  // The namespace stays for as long as TCP of it has something to send: what is left of it would, too.
  onTestFinished(() => void ip('link', 'delete', near))
  ip('address', 'add', `${network}.1/24`, 'dev', near)
  ip('link', 'set', near, 'up')
  inside('link', 'set', far, 'address', '02:00:00:00:00:02')
  inside('address', 'add', `${network}.2/24`, 'dev', far)
  inside('link', 'set', far, 'up')
  // No question who has the address, whose answer would fail to come.
  ip('neighbor', 'replace', `${network}.2`, 'lladdr', '02:00:00:00:00:02', 'dev', near, 'nud', 'permanent')
  return {
    ports,
    address: `${network}.2`,
    vanish: () => void inside('link', 'set', far, 'down'),
  }
}

interface End {
  readonly id: ConnectionId
  readonly queue: CompletionQueue
  readonly queuePair: QueuePair
  readonly region: MemoryRegion
  readonly far: { remoteAddress: bigint; remoteKey: number }
}

async function connect(uri: string, progress: 'automatic' | 'manual' = 'automatic'): Promise<End> {
  const id = await ConnectionId.resolve(uri)
  onTestFinished(() => id.close())
  const domain = id.context.allocateProtectionDomain()
  const region = await domain.allocateMemoryRegion(2 ** 20, ['local-write'])
  const channel = id.context.createCompletionChannel()
  const queue = id.context.createCompletionQueue({ entries: 64, channel, progress })
  const queuePair = id.createQueuePair(domain, { sendQueue: queue, maxSend: 32 })
  const told = Buffer.from(await id.connect())
  return {
    id,
    queue,
    queuePair,
    region,
    far: { remoteAddress: told.readBigUInt64LE(), remoteKey: told.readUInt32LE(8) },
  }
}

const OUTSTANDING: Readonly<Record<string, (end: End) => void>> = {
  nothing: () => {},
  'a SEND': ({ queuePair, region }) => queuePair.postSend({ opcode: 'send', data: [{ region, length: 64 }] }),
  'a WRITE': ({ queuePair, region, far }) =>
    queuePair.postSend({ opcode: 'rdma-write', data: [{ region, length: 64 }], ...far }),
  'more WRITEs than a socket takes': ({ queuePair, region, far }) => {
    for (let i = 0; i < 32; i++)
      queuePair.postSend({ opcode: 'rdma-write', data: [{ region, length: 2 ** 20 }], ...far })
  },
  'a READ': ({ queuePair, region, far }) =>
    queuePair.postSend({ opcode: 'rdma-read', data: [{ region, length: 64 }], ...far }),
}

it('is noticed whatever is outstanding, and one that is stopped is not taken for it', async () => {
  const host = await startHost()
  const cases = await Promise.all(
    (['automatic', 'manual'] as const).flatMap((progress) =>
      Object.entries(OUTSTANDING).map(async ([name, post]) => {
        return {
          name: `${progress}, ${name}`,
          post,
          end: await connect(`iwarp://${host.address}:${host.ports.verbs}`, progress),
        }
      }),
    ),
  )
  const ring = async () => {
    const connection = await RingConnection.connect(`iwarp://${host.address}:${host.ports.ring}`, {
      heartbeat: 0,
    })
    onTestFinished(() => connection.close({ drain: false }))
    const offer = new Promise<RingOffer>((resolve) => connection.offers.subscribe(resolve))
    return { connection, offer: await offer }
  }
  const rings = await Promise.all(Array.from({ length: 4 }, ring))
  const [idle, sends, asks, reads] = rings as [
    (typeof rings)[0],
    (typeof rings)[0],
    (typeof rings)[0],
    (typeof rings)[0],
  ]

  const stopped = await startServer()
  const alive = await connect(`iwarp://127.0.0.1:${stopped.ports.verbs}`)
  let over = false
  void alive.id.disconnected.then(() => {
    over = true
  })
  await stopProcess(stopped.process)
  OUTSTANDING['more WRITEs than a socket takes']?.(alive)

  host.vanish()
  const began = performance.now()
  const took = () => `${((performance.now() - began) / 1000).toFixed(1)} s`
  for (const { end, post } of cases) post(end)
  expect(sends.connection.send(new Uint8Array(1000))).toBe(true)
  const asked = asks.connection.request(new Uint8Array(1000), { timeout: 600_000 })
  const read = reads.offer.accept()
  const rejected = Promise.allSettled([asked, read])

  // The time is for people.
  const lost = { code: 'ETIMEDOUT' }
  for (const { name, end } of cases) {
    expect(await end.id.disconnected, name).toMatchObject(lost)
    console.log(`${name}: ${took()}`)
  }
  for (const { name, end } of cases.filter(({ name }) => /READ|more/.test(name))) {
    const statuses = []
    while (statuses.at(-1) !== 'retry-exceeded')
      statuses.push(...(await end.queue.wait(1)).map(({ status }) => status))
    expect(
      statuses.slice(0, -1).every((status) => status === 'success'),
      name,
    ).toBe(true)
  }
  expect(await rejected).toMatchObject([{ status: 'rejected' }, { status: 'rejected' }])
  for (const { connection } of [idle, sends, asks, reads]) {
    expect(await connection.closed).toBeInstanceOf(Error)
    console.log(`ring: ${took()}`)
  }

  expect(over).toBe(false)
  stopped.process.kill('SIGCONT')
  for (let done = 0; done < 32; ) {
    const completions = await alive.queue.wait(32)
    expect(completions.map(({ status }) => status)).toEqual(completions.map(() => 'success'))
    done += completions.length
  }
})
