import { scrapedMetrics } from '@rdmakit/operator-kit'
import { collectDefaultMetrics, Registry } from 'prom-client'
import type { SwapServer } from '../server/server.js'
import { REQUEST_BUCKETS } from '../server/server-counters.js'

/** The prefix of each metric of a swap-server. */
const METRICS_PREFIX = 'rdmakit_swap_server_'

/** The server's values, which are read at a scrape, and Node.js's values of the process. */
export function collectServerMetrics(server: SwapServer): Registry {
  const registry = new Registry()
  const { gauge, counter, histogram } = scrapedMetrics(registry, METRICS_PREFIX)
  const { sessions, refusals, requests } = server.counters
  counter('sessions_total', 'Sessions opened, resumed and ended', ['end'], () =>
    Object.entries(sessions).map(([end, count]) => [{ end }, count]),
  )
  counter('refusals_total', 'Requests and connections refused, by errno name', ['code'], () =>
    [...refusals].map(([code, count]) => [{ code }, count]),
  )
  histogram(
    'request_duration_seconds',
    'From a control request to its answer',
    'request',
    REQUEST_BUCKETS,
    () => Object.fromEntries(requests),
  )
  const status = () => server.query('operator')
  const { store } = server
  gauge('slab_bytes', 'Bytes of a slab', [], () => [[{}, store.slabSize]])
  gauge('slabs', 'Slabs that are lent or free', ['state'], () => [
    [{ state: 'lent' }, store.total - store.free],
    [{ state: 'free' }, store.free],
  ])
  gauge('sessions', 'Sessions, connected or lingering', ['state'], () => {
    const sessions = status().sessionList ?? []
    const lingering = sessions.filter((session) => session.lingering).length
    return [
      [{ state: 'connected' }, sessions.length - lingering],
      [{ state: 'lingering' }, lingering],
    ]
  })
  gauge('info', 'Always 1; its epoch changes with each start', ['epoch'], () => [
    [{ epoch: server.epoch }, 1],
  ])
  counter('control_failures_total', 'Uncaught failures of control code', [], () => [
    [{}, server.impairment()?.failures ?? 0],
  ])
  const pressure = (name: string, help: string, read: (of: Pressure) => number | null | undefined) =>
    gauge(name, help, [], () => {
      const of = status().pressure
      return of ? [[{}, Number(read(of) ?? 0)]] : []
    })
  pressure('host_available_bytes', 'MemAvailable of the host', (of) => of.availableBytes)
  pressure('headroom_bytes', 'Memory that the host keeps for itself', (of) => of.headroomBytes)
  pressure('memory_pressure_percent', 'some avg10 of /proc/pressure/memory', (of) => of.someAvg10)
  pressure('reclaiming_slabs', 'Slabs being reclaimed', (of) => of.reclaimingSlabs)
  pressure('reclaimed_slabs', 'Slabs given back since the start', (of) => of.reclaimedSlabs)
  const tenant = (name: string, help: string, read: (of: TenantStatus) => number | null | undefined) =>
    gauge(`tenant_${name}`, help, ['tenant'], () =>
      (status().tenants ?? []).map((of) => [{ tenant: of.name ?? '' }, Number(read(of) ?? 0)]),
    )
  tenant('slabs', 'Slabs that a tenant holds', (of) => of.slabs)
  tenant('quota_slabs', 'Slabs that a tenant may hold', (of) => of.quotaSlabs)
  tenant('sessions', 'Its sessions', (of) => of.sessions)
  tenant('bytes_per_second', 'As its clients report', (of) => of.usage?.bytesPerSecond)
  tenant('operations_per_second', 'As its clients report', (of) => of.usage?.operationsPerSecond)
  collectDefaultMetrics({ register: registry, prefix: METRICS_PREFIX })
  return registry
}

type Status = ReturnType<SwapServer['query']>
type Pressure = NonNullable<Status['pressure']>
type TenantStatus = NonNullable<Status['tenants']>[number]
