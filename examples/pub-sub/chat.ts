// Publishes the lines of its input and prints what others publish.
// node examples/dist/pub-sub/chat.js [-c uri] [-n name] [-l] [-d milliseconds] topic…
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { setTimeout as after } from 'node:timers/promises'
import { RingConnection, type RingMessage } from '@rdmakit/ring-transport'
import { Command, InvalidArgumentError } from 'commander'
import { decode, encode } from './publication.js'

interface Options {
  connect: string
  name: string
  listen: boolean
  delay: number
}

const program = new Command('chat')
  .argument('<topic...>', 'what to listen to; lines are published to the first')
  .option('-c, --connect <uri>', 'the hub', 'iwarp://127.0.0.1:7474')
  .option('-n, --name <name>', 'at most 20 bytes', 'somebody')
  .option('-l, --listen', 'only listen, until SIGINT, SIGTERM or the end of the hub', false)
  .option('-d, --delay <milliseconds>', 'how long one message takes to be read', milliseconds, 0)
  .parse()
const { connect, name, listen, delay } = program.opts<Options>()
const topics = program.args

function milliseconds(text: string): number {
  const number = Number(text)
  if (!(number >= 0)) throw new InvalidArgumentError('It is a number of milliseconds.')
  return number
}

const connection = await RingConnection.connect(connect, {
  applicationData: Buffer.from(name),
  // The hub drops what a slow listener has no room for; what is in the ring is not dropped.
  capacity: 2 ** 20,
})

async function read(message: RingMessage): Promise<void> {
  const publication = decode(message.data)
  if (publication === undefined) return
  // The hub tells with each message how many before it did not get through.
  if (message.immediate > 0) await print(`(${message.immediate} missed)`)
  await print(`${publication.topic} ${publication.text}`)
  if (delay > 0) await after(delay)
}

/** Waits for who reads it. */
async function print(line: string): Promise<void> {
  if (!process.stdout.write(`${line}\n`)) await once(process.stdout, 'drain')
}

// The next message is taken when this one is read. Until then it waits in the ring, and then in the hub.
connection.consume(read).subscribe()
await connection.request(Buffer.from(topics.join('\n')))
console.log(`listening to ${topics.join(', ')}`)
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void connection.close())

async function publish(): Promise<void> {
  const lines = createInterface({ input: process.stdin })
  // Without the hub there is no reason to wait for the next line.
  void connection.closed.then(() => lines.close())
  for await (const line of lines) {
    const bytes = encode({ topic: topics[0] as string, text: `${name}: ${line}` })
    // The hub's ring is full: it has more to do than it can.
    while (!connection.send(bytes)) await connection.writable()
  }
  await connection.close()
}

if (!listen)
  await publish().catch((failure) => {
    // A connection that has ended says why below.
    if (connection.isOpen) throw failure
  })
const reason = await connection.closed
if (reason !== undefined) {
  console.error(`chat: ${reason.message}`)
  process.exitCode = 1
}
