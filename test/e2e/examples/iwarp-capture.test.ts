// The traffic on the wire, as an independent dissector reads it: tshark captures an iwarp:// connection on loopback,
// and finds nothing wrong with it.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { connect } from 'node:net'
import { join } from 'node:path'
import {
  type CompletionQueue,
  ConnectionId,
  Listener,
  type SendWorkRequest,
  type WorkCompletion,
} from '@rdmakit/verbs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { must, temporaryFolder } from '../helpers/processes.js'

const folder = temporaryFolder()
const file = join(folder.path, 'iwarp.pcapng')
// The payloads are no protocol's, whatever they look like to those that rest on iWARP.
const OTHERS = ['rpcordma', 'smb_direct'].flatMap((name) => ['--disable-protocol', name])
const DECODE = ['-r', file, '--enable-heuristic', 'iwarp_mpa_tcp', ...OTHERS]
const OPCODES = {
  write: 0,
  readRequest: 1,
  readResponse: 2,
  send: 3,
  sendSolicited: 5,
  terminate: 7,
  immediate: 8,
}
const SIZES = [0, 1, 100, 4096, 65_536, 300_001, 2 ** 20]

/** A tshark that writes the packets of a port to `file`, and says one line for each that it has seen. */
class Capture {
  readonly #process: ChildProcess
  readonly #exited: Promise<void>
  #lines = ''
  #errors = ''
  readonly #waiters = new Set<() => void>()

  constructor(port: number) {
    const limits = ['-B', '64', '-a', 'duration:300', '-a', 'filesize:100000']
    this.#process = spawn('tshark', ['-i', 'lo', '-f', `tcp port ${port}`, '-w', file, '-P', '-l', ...limits])
    this.#process.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.#lines += text
      for (const wake of this.#waiters) wake()
    })
    this.#process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#errors += text
    })
    this.#exited = new Promise((resolve, reject) => {
      this.#process.once('error', reject)
      this.#process.once('close', () => {
        for (const wake of this.#waiters) wake()
        resolve()
      })
    })
  }

  /** Resolves when the packets seen so far match. @throws when tshark ends before */
  async sees(matches: (lines: string) => boolean): Promise<void> {
    while (!matches(this.#lines)) {
      if (this.#process.exitCode !== null) throw new Error(`tshark ended: ${this.#errors}`)
      await new Promise<void>((resolve) => {
        const wake = () => {
          this.#waiters.delete(wake)
          resolve()
        }
        this.#waiters.add(wake)
      })
    }
  }

  async stop(): Promise<void> {
    this.#process.kill('SIGINT')
    await this.#exited
    // Lost packets cannot be decoded, and prove nothing about the sent ones.
    if (this.#errors.includes('dropped')) throw new Error(`tshark lost packets: ${this.#errors}`)
  }
}

/** Connects, and goes away at once: packets by which a capture shows that it has begun. */
function probe(port: number): Promise<void> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.destroy())
    socket.once('close', () => resolve()).once('error', () => {})
  })
}

type End = Awaited<ReturnType<typeof makeEnd>>

async function makeEnd(id: ConnectionId) {
  const protectionDomain = id.context.allocateProtectionDomain()
  const completionQueue = id.context.createCompletionQueue({ entries: 64 })
  const region = await protectionDomain.allocateMemoryRegion(2 ** 20, ['remote-read', 'remote-write'])
  const queuePair = id.createQueuePair(protectionDomain, { sendQueue: completionQueue })
  return { id, protectionDomain, completionQueue, region, queuePair, bytes: new Uint8Array(region.buffer) }
}

async function completion(queue: CompletionQueue): Promise<WorkCompletion> {
  const deadline = Date.now() + 50_000
  while (Date.now() < deadline) {
    const [taken] = queue.poll(1)
    if (taken) return taken
    await new Promise((resolve) => setImmediate(resolve))
  }
  throw new Error('no completion after 50 s')
}

/** A pattern in which every byte depends on its place. */
function pattern(length: number, seed: number): Uint8Array {
  return Uint8Array.from({ length }, (_, i) => (i * 31 + (i >> 8) * 17 + seed * 101) & 0xff)
}

async function transfer(from: End, to: End): Promise<void> {
  const remote = { remoteAddress: to.region.address, remoteKey: to.region.remoteKey }
  const immediate = 0x1234_5678
  for (const [index, length] of SIZES.entries()) {
    const data = [{ region: from.region, length }]
    from.bytes.set(pattern(length, index))
    const requests: SendWorkRequest[] = [
      { opcode: 'send', solicited: index % 2 === 1, data },
      { opcode: 'send-with-immediate', immediate, data },
      { opcode: 'rdma-write', data, ...remote },
      { opcode: 'rdma-write-with-immediate', immediate, data, ...remote },
      { opcode: 'rdma-read', data, ...remote },
    ]
    for (const request of requests) {
      const received = request.opcode !== 'rdma-write' && request.opcode !== 'rdma-read'
      if (received) to.queuePair.postReceive({ data: [{ region: to.region }] })
      from.queuePair.postSend(request)
      const queues = [from.completionQueue, ...(received ? [to.completionQueue] : [])]
      for (const { status } of await Promise.all(queues.map(completion))) expect(status).toBe('success')
      expect(Buffer.compare(to.bytes.subarray(0, length), pattern(length, index))).toBe(0)
    }
  }
}

/** Each FPDU and setup frame: the values of `fields`. */
function decode(filter: string, ...fields: string[]): string[][] {
  const columns = fields.flatMap((field) => ['-e', field])
  const output = must('tshark', [...DECODE, '-Y', filter, '-T', 'fields', ...columns])
  return output
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.split('\t'))
}

const missing = spawnSync('tshark', ['-i', 'lo', '-a', 'duration:0', '-w', file]).status !== 0
if (missing && process.env.CI === undefined) {
  console.warn('iwarp-capture: skipped: tshark cannot capture on lo here (not installed, or not root)')
}

describe.skipIf(missing && process.env.CI === undefined)('a captured iwarp:// connection', () => {
  let details: string

  beforeAll(async () => {
    let accepted!: (end: End) => void
    const other = new Promise<End>((resolve) => {
      accepted = resolve
    })
    const listener = await Listener.listen('iwarp://127.0.0.1:0', async ({ id }) => {
      const end = await makeEnd(id)
      await id.accept({ privateData: Buffer.from('welcome') })
      accepted(end)
    })
    const port = Number(new URL(listener.uri).port)
    const capture = new Capture(port)
    const probing = setInterval(() => void probe(port), 50)
    await capture.sees((lines) => lines.includes('SYN'))
    clearInterval(probing)
    const client = await makeEnd(await ConnectionId.resolve(listener.uri))
    await client.id.connect({ privateData: Buffer.from('hello') })
    const server = await other
    await transfer(client, server)
    await transfer(server, client)
    // The last of it: a READ that the peer refuses with a Terminate message.
    client.queuePair.postSend({
      opcode: 'rdma-read',
      data: [{ region: client.region, length: 8 }],
      remoteAddress: server.region.address - 1n,
      remoteKey: server.region.remoteKey,
    })
    await client.id.disconnected
    await capture.sees((lines) => /Terminate/.test(lines))
    await capture.stop()
    for (const end of [client, server]) {
      end.id.close()
      end.protectionDomain.close()
      end.completionQueue.close()
    }
    listener.close()
    details = must('tshark', [...DECODE, '-V', '-Y', 'iwarp_mpa', '-O', 'iwarp_mpa,iwarp_ddp_rdmap'])
  }, 180_000)

  afterAll(() => folder[Symbol.dispose]())

  it('nothing is malformed, and no expert finds an error', () => {
    expect(decode('_ws.malformed || iwarp_mpa && _ws.expert.severity >= error', 'frame.number')).toEqual([])
    expect(details).not.toMatch(/Malformed|Expert Info \(Error/)
  })

  it('one MPA request and one reply, of revision 2, that ask for CRCs and not for markers', () => {
    const fields = ['rev', 'crc_flag', 'marker_flag', 'rej_flag', 'key.req', 'key.rep']
    const frames = decode(
      'iwarp_mpa.key.req || iwarp_mpa.key.rep',
      ...fields.map((name) => `iwarp_mpa.${name}`),
    )
    expect(frames.map((values) => values.slice(0, 4))).toEqual([
      ['2', '1', '0', '0'],
      ['2', '1', '0', '0'],
    ])
    expect(frames.map(([, , , , request, reply]) => [request !== '', reply !== ''])).toEqual([
      [true, false],
      [false, true],
    ])
  })

  it('every CRC is right', () => {
    const fpdus = details.match(/ULPDU length: /g)?.length ?? 0
    expect(fpdus).toBeGreaterThan(100)
    expect(details.match(/CRC check: 0x[0-9a-f]{8} \(Good CRC32\)/g)).toHaveLength(fpdus)
  })

  it('DDP segments of both buffer models, of version 1', () => {
    const segments = [...details.matchAll(/DDP protocol version: (\d)/g)].map((match) => match[1])
    expect(new Set(segments)).toEqual(new Set(['1']))
    expect(details).toContain('Tagged flag: True')
    expect(details).toContain('Tagged flag: False')
  })

  it('as many messages of each RDMAP opcode as were sent', () => {
    // The last segment of each message carries the Last flag.
    const messages = new Map<number, number>()
    for (const segment of details.split('DDP header').slice(1)) {
      if (!segment.includes('Last flag: True')) continue
      const opcode = Number(/OpCode: .*\((0x[0-9a-f]+)\)/.exec(segment)?.[1])
      messages.set(opcode, (messages.get(opcode) ?? 0) + 1)
    }
    const each = 2 * SIZES.length // both directions
    const solicited = 2 * SIZES.filter((_, index) => index % 2 === 1).length
    expect(Object.fromEntries(messages)).toEqual({
      [OPCODES.write]: 2 * each + 1, // and the Ready-To-Receive message
      [OPCODES.readRequest]: each + 1,
      [OPCODES.readResponse]: each,
      [OPCODES.send]: 2 * each - solicited,
      [OPCODES.sendSolicited]: solicited,
      [OPCODES.immediate]: 2 * each,
      [OPCODES.terminate]: 1,
    })
  })
})
