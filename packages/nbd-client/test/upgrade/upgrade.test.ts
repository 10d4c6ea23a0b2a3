import { ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it, vi } from 'vitest'
import { effort, patience } from '../../../../test/effort.js'
import { ADDRESSES, serve } from '../../../remote-volume/test/helpers/swap-servers.js'
import { Successor } from '../../src/upgrade/successor.js'
import {
  endWithTest,
  eventually,
  prepare,
  startVolume,
  temporaryFolder,
  type VolumeProcess,
  Workload,
} from '../helpers/volume-client.js'

/** The minimum that the kernel gives a request: --timeout + 2 s (device-timeouts.ts). */
const REQUEST_MS = 6_000
/** Writes before a hand-over, and after it. */
const SOME = 100

let state: string
let servers: Awaited<ReturnType<typeof serve>>[]

beforeEach(() => {
  state = temporaryFolder()
  servers = []
})

async function lend(uri: string): Promise<void> {
  servers.push(await serve(16, uri))
}

interface Shape {
  readonly replicas: number
  readonly thin?: boolean
  readonly backup?: boolean
}

async function start(
  shape: Shape,
  environment: NodeJS.ProcessEnv = {},
  folder = state,
  on = servers,
): Promise<VolumeProcess> {
  const place = {
    ...{ state: folder, servers: on.map(({ uri }) => uri), ...shape },
    backup: shape.backup === true ? { file: join(state, 'backup') } : undefined,
  }
  const volume = startVolume(place, environment)
  await volume.ready()
  return volume
}

/** Lets the process `pid` hand over, in the middle of writes. @returns the line that comes of it, and of whom */
async function handOver(
  volume: VolumeProcess,
  workload: Workload,
  pid: number,
  line: RegExp,
): Promise<RegExpExecArray> {
  await more(workload)
  const from = volume.output.length
  process.kill(pid, 'SIGHUP')
  return await volume.heard(line, from)
}

/** Resolves when pages were written. */
async function more(workload: Workload): Promise<void> {
  const { written } = workload
  await eventually(() => workload.written > written + SOME)
}

describe.each(Object.entries(ADDRESSES))('an upgrade in the middle of writes, over %s', (_, address) => {
  it.each<[string, Shape]>([
    ['1 replica', { replicas: 1 }],
    ['2 replicas', { replicas: 2 }],
    ['2 replicas, thin', { replicas: 2, thin: true }],
    ['1 replica and a backup', { replicas: 1, backup: true }],
  ])(
    'pauses and loses nothing, with %s',
    async (_, shape) => {
      for (let i = 0; i < shape.replicas; i++) await lend(address())
      const volume = await start(shape)
      const workload = new Workload()
      let pid = volume.process.pid as number
      const pauses: number[] = []
      // For two volumes the successor hands over too, as its predecessor did.
      const rounds = effort(shape.backup === true || shape.thin === true ? 2 : 1)
      for (let round = 1; round <= rounds; round++) {
        await prepare(volume, pid)
        const running = workload.run(volume)
        const from = volume.output.length
        const over = await handOver(volume, workload, pid, /^over (\S+)$/m)
        pauses.push(Number(over[1]))
        pid = endWithTest(Number((await volume.heard(/^successor (\d+)$/m, from))[1]))
        await more(workload)
        workload.stop()
        await running
      }
      // By time, for no event tells that a pause is short: some 100 ms, on a machine that does nothing else. What stands
      // still for long does so each time, so the shortest counts.
      expect(Math.min(...pauses)).toBeLessThan(REQUEST_MS)
      // No connection ended, and no request went unanswered.
      expect(volume.closed).toBe(false)
      expect(await workload.verify(volume)).toBe(0)
      if (shape.backup === true) {
        // The last successor goes on with the backup that the first process began.
        await servers[0]?.server.close()
        expect(await workload.verify(volume)).toBe(0)
      }
      process.kill(pid, 'SIGTERM')
      await eventually(() => servers.every(({ server }) => server.store.free === 16))
    },
    patience(60_000),
  )
})

/** The process of `volume` serves, has lost nothing, and ends in good order. Ends the workload. */
async function servedOn(
  volume: VolumeProcess,
  workload: Workload,
  running: Promise<void>,
  on: typeof servers,
): Promise<void> {
  await more(workload)
  workload.stop()
  await running
  expect(volume.closed).toBe(false)
  expect(await workload.verify(volume)).toBe(0)
  expect(await volume.end('SIGTERM')).toBe(0)
  for (const { server } of on) expect(server.store.free).toBe(16)
}

describe('a successor that fails', () => {
  beforeEach(async () => {
    for (let i = 0; i < 2; i++) await lend(ADDRESSES.shm())
  })

  it('before it is ready leaves the old process serving', async () => {
    const volume = await start({ replicas: 2 }, { TEST_SUCCESSOR: 'start dies' })
    const workload = new Workload()
    const running = workload.run(volume)
    // And may be asked again.
    for (let time = 0; time < 2; time++)
      await handOver(
        volume,
        workload,
        volume.process.pid as number,
        /^not started: .* cannot take over: it ended/m,
      )
    await servedOn(volume, workload, running, servers)
  })

  it.each([
    ['when it has the sockets and nothing else', 'go dies', /^kept kept /m],
    ['when it has resumed the sessions', 'resumed dies', /^kept kept /m],
  ])('%s leaves the old process serving', async (_, step, line) => {
    const volume = await start({ replicas: 2 }, { TEST_SUCCESSOR: step })
    const workload = new Workload()
    for (let time = 0; time < 2; time++) {
      await prepare(volume, volume.process.pid as number)
      const running = workload.run(volume)
      await handOver(volume, workload, volume.process.pid as number, line)
      await more(workload)
      workload.stop()
      await running
    }
    await servedOn(volume, workload, workload.run(volume), servers)
  })

  // It could not read a folder with a take-over number, nor have sessions back from a process with one.
  it.each(['go dies', 'resumed dies', 'taken dies'])(
    'when it is at "%s" leaves a process before numbers all that it had',
    async (step) => {
      const environment = { TEST_SUCCESSOR: step, TEST_PREDECESSOR: 'old' }
      const volume = await start({ replicas: 2 }, environment)
      const workload = new Workload()
      await prepare(volume, volume.process.pid as number)
      const running = workload.run(volume)
      await handOver(volume, workload, volume.process.pid as number, /^kept (kept|dead) /m)
      workload.stop()
      await running
      expect(readFileSync(join(state, 'volume.json'), 'utf8')).not.toMatch(/takeOver/)
      await volume.end('SIGKILL')
      const next = await start({ replicas: 2 })
      expect(next.output).toMatch(/^degraded 0 lost 0$/m)
      await workload.repeat(next)
      expect(await workload.verify(next)).toBe(0)
      expect(JSON.parse(readFileSync(join(state, 'volume.json'), 'utf8'))).toMatchObject({
        takeOver: { number: 1 },
      })
    },
  )

  it.each(['dies', 'hangs'])(
    'and %s with the sockets in its hands leaves the old process the volume',
    async (how) => {
      const volume = await start({ replicas: 2 }, { TEST_SUCCESSOR: `taken ${how}` })
      const workload = new Workload()
      await prepare(volume, volume.process.pid as number)
      const running = workload.run(volume)
      await handOver(volume, workload, volume.process.pid as number, /^kept dead /m)
      await running
      // The requests that the clients repeat then, on other connections, find everything.
      await volume.end('SIGKILL')
      const next = await start({ replicas: 2 })
      expect(next.output).toMatch(/^degraded 0 lost 0$/m)
      await workload.repeat(next)
      expect(await workload.verify(next)).toBe(0)
    },
  )
})

describe('a successor that hangs', () => {
  async function hangs(step: string, shape: Shape, on: typeof servers): Promise<void> {
    const folder = mkdtempSync(join(state, 'state-'))
    const volume = await start(shape, { TEST_SUCCESSOR: step }, folder, on)
    const workload = new Workload()
    const pid = volume.process.pid as number
    await prepare(volume, pid)
    const running = workload.run(volume)
    const kept = await handOver(
      volume,
      workload,
      pid,
      /^kept kept (\S+) .*it did not say "taken" within (\d+) ms/m,
    )
    expect(Number(kept[1])).toBeGreaterThanOrEqual(Number(kept[2]))
    await more(workload)
    workload.stop()
    await running
    expect(volume.closed).toBe(false)
    expect(await workload.verify(volume)).toBe(0)
    if (shape.backup === true) {
      await on[0]?.server.close()
      expect(await workload.verify(volume)).toBe(0)
    }
    expect(await volume.end('SIGTERM')).toBe(0)
    for (const { server } of on) expect(server.store.free).toBe(16)
  }

  /** Before it is ready: all the time the device is served. */
  async function hangsAtItsStart(on: typeof servers): Promise<void> {
    const folder = mkdtempSync(join(state, 'state-'))
    const volume = await start({ replicas: 1 }, { TEST_SUCCESSOR: 'start hangs' }, folder, on)
    const workload = new Workload()
    const running = workload.run(volume)
    await more(workload)
    const { written } = workload
    const from = volume.output.length
    process.kill(volume.process.pid as number, 'SIGHUP')
    await volume.heard(/^not started: .* did not say "ready" within 2000 ms/m, from)
    expect(workload.written).toBeGreaterThan(written + SOME)
    await servedOn(volume, workload, running, on)
  }

  it('in the kernel, where no signal ends it, is not waited for', async () => {
    const unkillable = vi.spyOn(ChildProcess.prototype, 'kill').mockReturnValue(true)
    try {
      await expect(Successor.start(['sh', '-c', 'echo nonsense >&3; exec sleep 3600'])).rejects.toThrow(
        /sh cannot take over: it said something else/,
      )
      expect(unkillable).toHaveBeenCalledWith('SIGKILL')
      const [child] = unkillable.mock.contexts as ChildProcess[]
      expect([child?.exitCode, child?.signalCode]).toEqual([null, null])
    } finally {
      const children = [...unkillable.mock.contexts] as ChildProcess[]
      unkillable.mockRestore()
      for (const child of children) child.kill('SIGKILL')
    }
  })

  // At the same time, for each waits for nothing, and two of them for 20 s.
  it(
    'before it has taken the volume is killed, and the old process serves on and has lost nothing',
    async () => {
      for (let i = 0; i < 4; i++) await lend(ADDRESSES.shm())
      await Promise.all([
        hangsAtItsStart(servers.slice(3)),
        hangs('go hangs', { replicas: 2 }, servers.slice(0, 2)),
        // Sessions, maps and the backup's file are in its hands.
        hangs('resumed hangs', { replicas: 1, backup: true }, servers.slice(2, 3)),
      ])
    },
    patience(180_000),
  )
})

describe('an old process that dies', () => {
  beforeEach(() => lend(ADDRESSES.shm()))

  it('when its successor has everything is not missed', async () => {
    const volume = await start({ replicas: 1 }, { TEST_PREDECESSOR: 'yours' })
    const workload = new Workload()
    const pid = volume.process.pid as number
    await prepare(volume, pid)
    const running = workload.run(volume)
    const successor = await handOver(volume, workload, pid, /^successor (\d+)$/m)
    endWithTest(Number(successor[1]))
    await more(workload)
    workload.stop()
    await running
    expect(volume.closed).toBe(false)
    expect(await workload.verify(volume)).toBe(0)
  })

  it('before it gave anything away leaves the successor nothing but a take-over', async () => {
    const volume = await start({ replicas: 1 }, { TEST_PREDECESSOR: 'go' })
    const workload = new Workload()
    const pid = volume.process.pid as number
    await prepare(volume, pid)
    const running = workload.run(volume)
    await handOver(volume, workload, pid, /^alone$/m)
    await running
    const next = await start({ replicas: 1 })
    await workload.repeat(next)
    expect(await workload.verify(next)).toBe(0)
  })
})
