// Two processes of one host that may not copy each other's memory (process_vm_readv(2)): in another PID namespace, of
// another user. Memory that is shared works between them; other memory is refused where it is registered, or where they
// connect, and nothing fails in the middle. And what a container lacks besides.
import { spawn } from 'node:child_process'
import { chownSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { describe, expect, it, onTestFinished } from 'vitest'
import { ConnectionId, Listener, type MemoryRegion } from '../../src/index.js'
import { completions, pattern } from '../conformance/pair.js'

const USER = 61_234
const MIB = 2 ** 20

/** Lines of shm-peer.mjs, started by `launcher`, and where it listens. */
async function startPeer(launcher: readonly string[], user?: number) {
  const folder = mkdtempSync(join(tmpdir(), 'shm-reach-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  if (user !== undefined) chownSync(folder, user, user)
  const uri = `shm://${folder}/peer`
  const script = fileURLToPath(new URL('shm-peer.mjs', import.meta.url))
  const words = [...launcher, process.execPath, script, uri, ...(user === undefined ? [] : [`${user}`])]
  const peer = spawn(words[0] as string, words.slice(1), { stdio: ['ignore', 'pipe', 'inherit'] })
  onTestFinished(() => void peer.kill('SIGKILL'))
  const lines = createInterface({ input: peer.stdout })[Symbol.asyncIterator]()
  const says = async () => (await lines.next()).value
  expect(await says()).toBe('listening')
  return { uri, says }
}

async function end(uri: string) {
  const id = await ConnectionId.resolve(uri)
  onTestFinished(() => id.close())
  const domain = id.context.allocateProtectionDomain()
  onTestFinished(() => domain.close())
  // With a channel, whose descriptor the peer gets, and looks at.
  const channel = id.context.createCompletionChannel()
  const queue = id.context.createCompletionQueue({ entries: 64, channel })
  const queuePair = id.createQueuePair(domain, { sendQueue: queue })
  return { id, domain, queue, queuePair }
}
type End = Awaited<ReturnType<typeof end>>

/** A SEND, a WRITE and a READ back of memory that is shared. */
async function works({ domain, queue, queuePair }: End, told: Uint8Array) {
  const far = Buffer.from(told)
  const region = await domain.allocateMemoryRegion(MIB, ['local-write'])
  const bytes = new Uint8Array(region.buffer)
  const post = (opcode: 'rdma-write' | 'rdma-read', from: MemoryRegion) =>
    queuePair.postSend({
      opcode,
      data: [{ region: from }],
      remoteAddress: far.readBigUInt64LE(),
      remoteKey: far.readUInt32LE(8),
    })
  bytes.set(pattern(MIB))
  queuePair.postSend({ opcode: 'send', data: [{ region, length: 2 ** 16 }] })
  post('rdma-write', region)
  await completions(queue, 2)
  bytes.fill(0)
  post('rdma-read', region)
  expect(await completions(queue, 1)).toMatchObject([{ status: 'success' }])
  expect(Buffer.compare(bytes, pattern(MIB))).toBe(0)
  // Memory that this side copies itself may be of any kind.
  const own = domain.registerMemoryRegion(new ArrayBuffer(MIB), ['local-write'])
  post('rdma-read', own)
  expect(await completions(queue, 1)).toMatchObject([{ status: 'success' }])
  expect(Buffer.compare(new Uint8Array(own.buffer), pattern(MIB))).toBe(0)
}

const OUT_OF_REACH = [
  [
    'in a PID namespace that does not see this one',
    ['unshare', '--pid', '--fork', '--kill-child'],
    undefined,
  ],
  ['of another user', [], USER],
] as const

describe.each(OUT_OF_REACH)('a peer %s', (_, launcher, user) => {
  it('shares memory, and other memory is refused when it is registered', async () => {
    const peer = await startPeer(launcher, user)
    const here = await end(peer.uri)
    const told = await here.id.connect()
    expect(await peer.says()).toBe('accepted')
    await works(here, told)
    const register = () => here.domain.registerMemoryRegion(new ArrayBuffer(MIB), ['remote-read'])
    expect(register).toThrow(expect.objectContaining({ name: 'VerbsError', code: 'EPERM' }))
    expect(register).toThrow(/allocateMemoryRegion/)
    here.id.close()
    // Without that peer it may be.
    here.queuePair.close()
    await expect.poll(() => here.queuePair.destroyed).toBe(true)
    register().close()
  })

  it('is refused where other memory is registered already, at both ends', async () => {
    const peer = await startPeer(launcher, user)
    const here = await end(peer.uri)
    const region = here.domain.registerMemoryRegion(new ArrayBuffer(MIB), ['local-write', 'remote-write'])
    const refused = await here.id.connect().catch((error) => error)
    expect(refused).toMatchObject({ name: 'VerbsError', code: 'EPERM' })
    expect(refused.message).toMatch(/allocateMemoryRegion.*PID namespace/)
    expect(await peer.says()).toBe('EPERM')
    // Once that memory is no peer's any more it may be connected.
    region.close()
    const again = await end(peer.uri)
    await works(again, await again.id.connect())
  })
})

it('who listens with memory that is registered already refuses such a peer, at both ends', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'shm-reach-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  let answered: (outcome: unknown) => void = () => {}
  const accepted = new Promise((resolve) => {
    answered = resolve
  })
  const listener = await Listener.listen(`shm://${folder}/here`, async ({ id }) => {
    const domain = id.context.allocateProtectionDomain()
    domain.registerMemoryRegion(new ArrayBuffer(MIB), ['remote-read'])
    id.createQueuePair(domain, { sendQueue: id.context.createCompletionQueue({ entries: 64 }) })
    answered(await id.accept().catch((error) => error))
  })
  onTestFinished(() => listener.close())
  const script = fileURLToPath(new URL('shm-peer.mjs', import.meta.url))
  const words = ['--pid', '--fork', '--kill-child', process.execPath, script, listener.uri, 'connect']
  const peer = spawn('unshare', words, { stdio: ['ignore', 'pipe', 'inherit'] })
  onTestFinished(() => void peer.kill('SIGKILL'))
  let said = ''
  for await (const text of peer.stdout.setEncoding('utf8')) said += text
  expect(said).toMatch(/^EPERM: .*allocateMemoryRegion/)
  expect(await accepted).toMatchObject({ name: 'VerbsError', code: 'EPERM' })
})

it('a container without /proc, and with little room in /dev/shm, is a peer like others', async () => {
  const bare = 'mount -t tmpfs none /proc && mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
  const peer = await startPeer(['unshare', '--mount', 'sh', '-c', bare, 'sh'])
  const here = await end(peer.uri)
  await works(here, await here.id.connect())
  here.domain.registerMemoryRegion(new ArrayBuffer(MIB), ['remote-read']).close()
})
