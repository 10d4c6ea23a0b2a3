// examples/pub-sub: a hub, and subscribers fast and slow, each a process of its own.
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { RingConnection } from '@rdmakit/ring-transport'
import { describe, expect, it } from 'vitest'
import { encode } from '../../../examples/pub-sub/publication.js'
import { top } from '../../lab/base/paths.js'
import { PATIENCE_MS, Program, temporaryFolder } from '../helpers/processes.js'

const HUB = join(top, 'examples/dist/pub-sub/hub.js')
const CHAT = join(top, 'examples/dist/pub-sub/chat.js')

async function startHub(listen: string, ...args: string[]) {
  const program = new Program(HUB, ['-l', listen, ...args])
  const [, uri] = await program.prints(/^listening (\S+)$/m)
  return { program, uri: uri as string }
}

async function startListener(uri: string, name: string, topics: string[], ...args: string[]) {
  const program = new Program(CHAT, ['-c', uri, '-n', name, '-l', ...args, ...topics])
  await program.prints(/^listening to /m)
  return program
}

function publish(uri: string, topic: string, lines: readonly string[]): void {
  const { status, stderr } = spawnSync(process.execPath, [CHAT, '-c', uri, '-n', 'ann', topic], {
    input: `${lines.join('\n')}\n`,
    encoding: 'utf8',
    timeout: PATIENCE_MS,
  })
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
}

/** A listener's messages of a topic, in order. */
const heard = ({ stdout }: Program, topic: string) =>
  stdout
    .split('\n')
    .filter((line) => line.startsWith(`${topic} ann: `))
    .map((line) => line.slice(topic.length + 6))

/** The numbers that lines begin with. */
const numbers = (listener: Program) => heard(listener, 'cats').map((line) => Number.parseInt(line, 10))

/**
 * Publishes 4 MB to a fast listener and to a slow one, whose output is not read: it finishes a message only
 * when that is printed. That is more than pipe, ring (1 MiB) and queue hold, but never more at a time than half the
 * ring before the fast one has read it: for that, no credit need be on its way when it has printed the last.
 */
async function publishInRounds(uri: string, fast: Program, slow: Program): Promise<number[]> {
  const [rounds, each, text] = [8, 40, 'x'.repeat(12_000)]
  const publisher = await RingConnection.connect(uri, {
    timeout: PATIENCE_MS,
    applicationData: Buffer.from('ann'),
  })
  slow.process.stdout?.pause()
  for (let round = 0; round < rounds; round++) {
    for (let i = round * each; i < (round + 1) * each; i++) {
      const bytes = encode({ topic: 'cats', text: `ann: ${i} ${text}` })
      while (!publisher.send(bytes)) await publisher.writable()
    }
    await fast.prints(new RegExp(`^cats ann: ${(round + 1) * each - 1} `, 'm'))
  }
  await publisher.close({ timeout: PATIENCE_MS })
  return Array.from({ length: rounds * each }, (_, i) => i)
}

const missed = ({ stdout }: Program) =>
  [...stdout.matchAll(/^\((\d+) missed\)$/gm)].reduce((sum, [, count]) => sum + Number(count), 0)

describe.each(['iwarp', 'shm'])('pub-sub over %s', { timeout: 4 * PATIENCE_MS }, (scheme) => {
  const listenAt = (folder: string) =>
    scheme === 'shm' ? `shm://${join(folder, 'hub.sock')}` : 'iwarp://127.0.0.1:0'

  it('brings each topic to its subscribers, in order', async () => {
    using folder = temporaryFolder()
    const { program: hub, uri } = await startHub(listenAt(folder.path))
    await using _ = hub
    await using cats = await startListener(uri, 'bob', ['cats'])
    await using both = await startListener(uri, 'eve', ['cats', 'dogs'])
    const lines = Array.from({ length: 500 }, (_, i) => `line ${i}`)
    publish(uri, 'cats', lines)
    publish(uri, 'dogs', ['woof'])
    await both.prints(/^dogs ann: woof$/m)
    await cats.prints(/^cats ann: line 499$/m)
    expect(heard(cats, 'cats')).toEqual(lines)
    expect(heard(both, 'cats')).toEqual(lines)
    expect(cats.stdout).not.toMatch(/dogs/)
    expect(await cats.stop()).toMatchObject({ status: 0 })
    await hub.prints(/^bob left: 500 sent, 0 dropped$/m)
  })

  it('lets nobody wait for a slow subscriber, and counts what it misses', async () => {
    using folder = temporaryFolder()
    const { program: hub, uri } = await startHub(listenAt(folder.path), '-q', '65536')
    await using _ = hub
    await using slow = await startListener(uri, 'slow', ['cats'])
    await using fast = await startListener(uri, 'fast', ['cats'])
    const all = await publishInRounds(uri, fast, slow)
    expect(numbers(fast)).toEqual(all)
    slow.process.stdout?.resume()
    // The last ones are what it gets in the end: the oldest go first.
    await slow.prints(new RegExp(`^cats ann: ${all.length - 1} `, 'm'))
    const got = numbers(slow)
    expect(missed(slow)).toBe(all.length - got.length)
    expect(missed(slow)).toBeGreaterThan(100)
    expect(got).toEqual(all.filter((number) => got.includes(number)))
    await slow.stop()
    await hub.prints(new RegExp(`^slow left: ${got.length} sent, ${all.length - got.length} dropped$`, 'm'))
  })

  it('cuts a slow subscriber off where that is asked for', async () => {
    using folder = temporaryFolder()
    const { program: hub, uri } = await startHub(listenAt(folder.path), '-q', '65536', '-s', 'cut')
    await using _ = hub
    await using slow = await startListener(uri, 'slow', ['cats'])
    await using fast = await startListener(uri, 'fast', ['cats'])
    const all = await publishInRounds(uri, fast, slow)
    expect(numbers(fast)).toEqual(all)
    await hub.prints(/^slow left: \d+ sent, 1 dropped$/m)
    slow.process.stdout?.resume()
    expect(await slow.ends()).toMatchObject({ status: 1 })
    expect(slow.stderr).toMatch(/^chat: .*ECONNRESET/)
  })

  it('a chat ends with its hub, whether it listens, waits for a line or has just got one', async () => {
    using folder = temporaryFolder()
    const { program: hub, uri } = await startHub(listenAt(folder.path))
    await using _ = hub
    await using listener = await startListener(uri, 'bob', ['cats'])
    const chat = (name: string) => new Program(CHAT, ['-c', uri, '-n', name, 'cats'], {}, 'pipe', 'pipe')
    await using silent = chat('eve')
    await using busy = chat('ann')
    for (const one of [silent, busy]) await one.prints(/^listening to /m)
    busy.process.stdin?.write('a line\n')
    await listener.prints(/^cats ann: a line$/m)
    hub.process.kill('SIGKILL')
    busy.process.stdin?.on('error', () => {}).write('a line for nobody\n')
    for (const one of [listener, silent, busy]) {
      expect(await one.ends()).toMatchObject({ status: 1 })
      expect(one.stderr).toMatch(/^chat: [^\n]*ECONNRESET\)\n$/)
    }
  })
})
