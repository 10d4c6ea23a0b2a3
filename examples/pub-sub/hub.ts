// Passes each publication to the subscribers of its topic. node examples/dist/pub-sub/hub.js [-l uri] [-q
// bytes] [-s drop|cut]
import type { RingConnection } from '@rdmakit/ring-transport'
import { RingServer } from '@rdmakit/ring-transport'
import { Command, InvalidArgumentError, Option } from 'commander'
import { topicOf } from './publication.js'
import { type Outgoing, type Policy, Subscriber } from './subscriber.js'

interface Options {
  listen: string
  queue: number
  slow: Policy
}

const { listen, queue, slow } = new Command('hub')
  .option('-l, --listen <uri>', 'where to listen', 'iwarp://127.0.0.1:7474')
  .option('-q, --queue <bytes>', 'that may wait for one subscriber', positive, 2 ** 20)
  .addOption(
    new Option('-s, --slow <policy>', 'what becomes of a subscriber whose queue is full')
      .choices(['drop', 'cut'])
      .default('drop'),
  )
  .parse()
  .opts<Options>()

function positive(text: string): number {
  const number = Number(text)
  if (!Number.isSafeInteger(number) || number < 1) throw new InvalidArgumentError('It is a positive number.')
  return number
}

const topics = new Map<string, Set<Subscriber>>()

function subscribe(subscriber: Subscriber, topic: string): void {
  const known = topics.get(topic)
  if (known === undefined) topics.set(topic, new Set([subscriber]))
  else known.add(subscriber)
}

function leave(subscriber: Subscriber): void {
  for (const [topic, subscribers] of topics)
    if (subscribers.delete(subscriber) && subscribers.size === 0) topics.delete(topic)
}

/** To all who subscribed, but not back to where it comes from. */
function publish(bytes: Uint8Array, from: Subscriber): void {
  const topic = topicOf(bytes)
  if (topic === undefined) return
  let copy: Buffer | undefined
  const message: Outgoing = {
    bytes,
    copy: () => {
      copy ??= Buffer.from(bytes)
      return copy
    },
  }
  for (const subscriber of topics.get(topic) ?? []) if (subscriber !== from) subscriber.deliver(message)
}

function onConnection(connection: RingConnection): void {
  const name = Buffer.from(connection.applicationData).toString()
  const subscriber = new Subscriber(connection, slow, queue)
  // A request names topics to subscribe to, one in a line.
  connection.handle((request) => {
    for (const topic of request.text().split('\n')) subscribe(subscriber, topic)
    return Buffer.alloc(0)
  })
  // A view of the ring: it is copied once for all subscribers that cannot take it now.
  connection.views.subscribe((message) => publish(message.data, subscriber))
  void connection.closed.then((reason) => {
    leave(subscriber)
    const end = reason === undefined ? 'left' : `is lost (${reason.code})`
    console.log(`${name} ${end}: ${subscriber.sent} sent, ${subscriber.dropped} dropped`)
  })
}

const server = await RingServer.listen(listen, { onConnection })
console.log(`listening ${server.uri}`)
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => void server.close())
