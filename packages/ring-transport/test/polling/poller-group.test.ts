import { readdirSync, readFileSync } from 'node:fs'
import { type Context, listDevices, openDevice } from '@rdmakit/verbs'
import { afterEach, describe, expect, it } from 'vitest'
import { Poller, PollerGroup, RingConnection, RingServer } from '../../src/index.js'
import { listenUri, PROVIDERS, type Provider } from '../helpers/uris.js'

const open: { close(options?: { drain?: boolean }): unknown }[] = []
afterEach(async () => {
  // Connections and servers before their pollers.
  for (const one of open.splice(0).reverse()) await one.close({ drain: false })
})

function device(name: Provider): Context {
  const found = listDevices().find(({ provider }) => provider === name)
  if (found === undefined) throw new Error(`there is no ${name} device`)
  return openDevice(found.name, name)
}

function group(provider: Provider, options = {}): PollerGroup {
  const made = new PollerGroup(device(provider), options)
  open.push(made)
  return made
}

async function listen(uri: string | string[], options = {}): Promise<RingServer> {
  const server = await RingServer.listen(uri, {
    capacity: 4096,
    onConnection: (connection) => connection.handle((request) => request.copy()),
    ...options,
  })
  open.push(server)
  return server
}

async function connect(uri: string, options = {}): Promise<RingConnection> {
  const connection = await RingConnection.connect(uri, { capacity: 4096, ...options })
  open.push(connection)
  return connection
}

describe.each(PROVIDERS)('a group of pollers of %s', (provider) => {
  it('gives each connection to the poller that has the fewest, also when many come at once', async () => {
    const pollers = group(provider, { pollers: 3 })
    const server = await listen(listenUri(provider))
    const many = await Promise.all(Array.from({ length: 9 }, () => connect(server.uri, { poller: pollers })))
    expect(pollers.pollers.map(({ connections }) => connections)).toEqual([3, 3, 3])
    expect(pollers.connections).toBe(9)
    const answers = await Promise.all(many.map((one, i) => one.request(new Uint8Array([i]))))
    expect(answers.map(([first]) => first)).toEqual(many.map((_, i) => i))
    await many[0]?.close()
    await many[3]?.close()
    const [again, another] = await Promise.all([
      connect(server.uri, { poller: pollers }),
      connect(server.uri, { poller: pollers }),
    ])
    expect([again.isOpen, another.isOpen]).toEqual([true, true])
    expect(pollers.pollers.map(({ connections }) => connections)).toEqual([3, 3, 3])
  })

  it('closes all of them or none', async () => {
    const pollers = group(provider, { pollers: 2 })
    const server = await listen(listenUri(provider))
    const connection = await connect(server.uri, { poller: pollers })
    expect(() => pollers.close()).toThrow('1 connections; close them first')
    expect(pollers.pollers.map(({ closed }) => closed)).toEqual([false, false])
    await connection.close()
    pollers.close()
    pollers.close()
    expect(pollers.closed).toBe(true)
    await expect(connect(server.uri, { poller: pollers })).rejects.toThrow('closed')
  })

  it('serves the connections that a server accepts', async () => {
    const pollers = group(provider, { pollers: 2 })
    const server = await listen(listenUri(provider), { poller: pollers })
    const many = await Promise.all(Array.from({ length: 4 }, () => connect(server.uri)))
    await Promise.all(many.map((one) => one.request(new Uint8Array(1))))
    expect(pollers.pollers.map(({ connections }) => connections)).toEqual([2, 2])
  })
})

describe('a server that listens at several providers', () => {
  it('has pollers of each by a function', async () => {
    const groups = new Map(PROVIDERS.map((provider) => [device(provider), group(provider, { pollers: 2 })]))
    const server = await listen(PROVIDERS.map(listenUri), {
      poller: (context: Context) => groups.get(context),
    })
    const many = await Promise.all([...server.uris, ...server.uris].map((uri) => connect(uri)))
    await Promise.all(many.map((one) => one.request(new Uint8Array(1))))
    for (const pollers of groups.values())
      expect(pollers.pollers.map(({ connections }) => connections)).toEqual([1, 1])
  })

  it('with a poller of one refuses the connections of the other, and says why', async () => {
    const failures: unknown[] = []
    const server = await listen(PROVIDERS.map(listenUri), {
      poller: group('iwarp', { pollers: 1 }),
      onError: (failure: unknown) => failures.push(failure),
    })
    const [iwarp, shm] = server.uris as [string, string]
    await (await connect(iwarp)).request(new Uint8Array(1))
    await expect(connect(shm)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
    expect(failures).toEqual([
      expect.objectContaining({ message: expect.stringMatching(/poller belongs to .*iwarp/) }),
    ])
  })
})

describe('the options of a group', () => {
  it('pin its threads to CPUs', () => {
    const threads = () => readdirSync('/proc/self/task')
    const before = new Set(threads())
    group('iwarp', { cpus: [0, 1], mode: 'event' })
    const allowed = threads()
      .filter((thread) => !before.has(thread))
      .map(
        (thread) =>
          /Cpus_allowed_list:\s*(.*)/.exec(readFileSync(`/proc/self/task/${thread}/status`, 'utf8'))?.[1],
      )
    expect(allowed.sort()).toEqual(['0', '1'])
  })

  it('default to a poller for each CPU', () => {
    expect(group('iwarp').pollers.length).toBeGreaterThan(0)
    expect(group('iwarp', { cpus: [0] }).pollers).toHaveLength(1)
    expect(group('iwarp', { cpus: [0], pollers: 3 }).pollers).toHaveLength(3)
  })

  it.each([
    ['pollers', { pollers: 0 }],
    ['pollers', { pollers: 65 }],
    ['pollers', { pollers: 1.5 }],
    ['cpus', { cpus: [], pollers: 1 }],
    ['EINVAL', { cpus: [0, 1023] }],
    ['mode', { mode: 'sleepy' as 'poll' }],
  ])('out of range are named: %s', (name, options) => {
    expect(() => new PollerGroup(device('iwarp'), options)).toThrow(name)
  })

  it('are those of its pollers', () => {
    const [first] = group('iwarp', { pollers: 1, mode: 'event' }).pollers
    expect(first).toBeInstanceOf(Poller)
    expect(first?.mode).toBe('event')
  })
})
