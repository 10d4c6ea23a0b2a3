// What scripts and monitoring read of the programs is what docs/interfaces.md lists, no more and no less: a name that is lost
// or changed breaks who uses it. 1 s: two programs, one of them twice.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { collectRingMetrics } from '@rdmakit/ring-transport/metrics'
import { Registry } from 'prom-client'
import { beforeAll, expect, it } from 'vitest'
import {
  Program,
  RDMAKIT,
  SWAP_SERVER,
  startServe,
  startServer,
  temporaryFolder,
} from '../e2e/helpers/processes.js'
import { top } from '../lab/base/paths.js'

/** The list below a heading of docs/interfaces.md, a name a line; `?` behind one that is not always there. */
function listed(heading: string): { name: string; optional: boolean }[] {
  const text = readFileSync(join(top, 'docs/interfaces.md'), 'utf8')
  const section = text.split(/^#+ /m).find((each) => each.startsWith(`${heading}\n`))
  const lists = section?.matchAll(/^```\n(.*?)^```$/gms) ?? []
  return [...lists]
    .flatMap(([, list]) => (list as string).trim().split('\n'))
    .map((line) => ({ name: line.replace(/ \?$/, ''), optional: line.endsWith(' ?') }))
}

/** What of `found` and of the list below `heading` the other does not have. */
function differences(heading: string, found: Iterable<string>) {
  const names = new Set(found)
  const list = listed(heading)
  return {
    missing: list.filter(({ name, optional }) => !optional && !names.has(name)).map(({ name }) => name),
    unlisted: [...names].filter((name) => !list.some((each) => each.name === name)),
  }
}
const NONE = { missing: [], unlisted: [] }

/** `a.b[].c` of each value in `value`. */
function paths(value: unknown, path = ''): string[] {
  if (Array.isArray(value)) return value.flatMap((each) => paths(each, `${path}[]`))
  if (typeof value !== 'object' || value === null) return [path]
  return Object.entries(value).flatMap(([key, each]) => paths(each, path === '' ? key : `${path}.${key}`))
}

/** `name{label,label} type` of each metric of ours, but for those that prom-client has of the process. */
function metrics(exposition: string): string[] {
  const types = [...exposition.matchAll(/^# TYPE (\S+) (\S+)$/gm)]
  return types
    .filter(([, name]) => !/_(process|nodejs)_/.test(name as string))
    .map(([, name, type]) => {
      const samples = exposition.matchAll(new RegExp(`^${name}(?:_bucket)?\\{([^}]*)\\}`, 'gm'))
      const labels = [...samples].flatMap(([, each]) => [...(each as string).matchAll(/(\w+)="/g)])
      const names = [...new Set(labels.map(([, label]) => label))].filter((label) => label !== 'le')
      return `${name}${names.length === 0 ? '' : `{${names.join(',')}}`} ${type}`
    })
}

interface Seen {
  /** of each kind of program, what it printed */
  server: string
  client: string
  serverMetrics: string[]
  clientMetrics: string[]
  audit: string[]
  status: string[]
  reclaim: string[]
}
const seen = {} as Seen

beforeAll(async () => {
  using folder = temporaryFolder()
  const audit = join(folder.path, 'audit.log')
  const args = ['--memory', '32M', '--slab-size', '1M', '--json', '--audit-log', audit]
  const { program, uri } = await startServer(
    [...args, '--metrics', '127.0.0.1:0'],
    `shm://${join(folder.path, 's.sock')}`,
    folder.path,
  )
  await using server = program
  const [, serverMetrics] = await server.prints(/"event":"metrics","uri":"([^"]+)"/)
  const backup = ['--backup', join(folder.path, 'backup'), '--compress', 'lz4']
  using second = temporaryFolder()
  const run = async (...words: string[]) => {
    await using command = new Program(words[0] as string, words.slice(1), { RDMAKIT_RUN: folder.path })
    await command.ends()
    return command.stdout
  }
  const scrape = async (of: Program) => {
    const [, address] = await of.prints(/^metrics (\S+)$/m)
    return metrics(await (await fetch(address as string)).text())
  }
  const rich = await startServe(uri, '4M', folder.path, [...backup, '--metrics', '127.0.0.1:0'])
  await using client = rich.program
  const thin = await startServe(uri, '4M', second.path, ['--thin', '--metrics', '127.0.0.1:0'])
  await using thinClient = thin.program
  seen.clientMetrics = [...(await scrape(client)), ...(await scrape(thinClient))]
  seen.serverMetrics = metrics(await (await fetch(serverMetrics as string)).text())
  seen.status = paths(JSON.parse(await run(RDMAKIT, 'status', '--json')))
  seen.reclaim = paths(JSON.parse(await run(SWAP_SERVER, 'reclaim', '0', '--json')))
  await client.stop()
  await thinClient.stop()
  await server.stop()
  seen.client = client.stdout
  seen.server = server.stdout
  seen.audit = readFileSync(audit, 'utf8')
    .split('\n')
    .slice(0, -1)
    .flatMap((line) => {
      const { event, ...rest } = JSON.parse(line) as { event: string }
      return Object.keys(rest).map((key) => `${event}.${key}`)
    })
})

it('1 · nbd-client prints what a script waits for, a line each', () => {
  const words = seen.client.split('\n').filter(Boolean)
  expect(words.map((line) => line.split(' ')[0])).toEqual(['metrics', 'ready'])
  expect(words.every((line) => /^\w+ \S+$/.test(line))).toBe(true)
  expect(
    differences(
      'Lines of nbd-client',
      words.map((line) => line.replace(/ .*/, ' <uri>')),
    ),
  ).toEqual(NONE)
})

it('2 · swap-server --json prints events with these keys', () => {
  const found = seen.server
    .split('\n')
    .filter(Boolean)
    .flatMap((line) => {
      const { event, ...rest } = JSON.parse(line) as { event: string }
      return Object.keys(rest).map((key) => `${event}.${key}`)
    })
  expect(differences('Events of swap-server', found)).toEqual(NONE)
})

it('3 · the audit log has events with these keys', () => {
  expect(differences('Events of the audit log', seen.audit)).toEqual(NONE)
})

it('4 · status --json has these keys', () => {
  expect(differences('Keys of status', seen.status)).toEqual(NONE)
})

it('5 · reclaim --json has these keys', () => {
  expect(differences('Keys of reclaim', seen.reclaim)).toEqual(NONE)
})

it('6 · a volume has these metrics', () => {
  expect(differences('Metrics of a volume', seen.clientMetrics)).toEqual(NONE)
})

it('7 · a server has these metrics', () => {
  expect(differences('Metrics of a server', seen.serverMetrics)).toEqual(NONE)
})

it('8 · ring connections have these metrics', async () => {
  const registry = new Registry()
  const stop = collectRingMetrics(registry, { connections: [] })
  expect(differences('Metrics of ring connections', metrics(await registry.metrics()))).toEqual(NONE)
  stop()
})
