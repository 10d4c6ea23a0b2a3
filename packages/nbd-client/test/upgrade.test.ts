import { ChildProcess } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it, vi } from 'vitest'
import { Successor } from '../src/successor.js'
import { ADDRESSES, serve } from './swap-servers.js'
import {
  endWithTest,
  eventually,
  startVolume,
  temporaryFolder,
  type VolumeProcess,
  Workload,
} from './volume-client.js'

/** What the kernel gives a request at the least: --timeout + 2 s (requestTimeout). */
const REQUEST_MS = 6_000

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

/** Asks the process `pid` to hand over. @returns the line that comes of it, and of whom */
async function handOver(
  volume: VolumeProcess,
  pid: number,
  line: RegExp,
  timeout?: number,
): Promise<RegExpExecArray> {
  const from = volume.output.length
  process.kill(pid, 'SIGHUP')
  return await volume.heard(line, from, timeout)
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
      const running = workload.run(volume)
      let pid = volume.process.pid as number
      for (let round = 1; round <= 4; round++) {
        const { written } = workload
        await eventually(() => workload.written > written + 300)
        const from = volume.output.length
        const over = await handOver(volume, pid, /^over (\S+)$/m)
        // Under a second on a machine that does nothing else; what a request may take bounds it on any.
        expect(Number(over[1])).toBeLessThan(REQUEST_MS)
        pid = endWithTest(Number((await volume.heard(/^successor (\d+)$/m, from))[1]))
      }
      const { written } = workload
      await eventually(() => workload.written > written + 300)
      workload.stop()
      await running
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
    60_000,
  )
})

describe('a successor that fails', () => {
  beforeEach(async () => {
    for (let i = 0; i < 2; i++) await lend(ADDRESSES.shm())
  })

  it.each([
    ['before it is ready', 'start dies', /^not started: .* cannot take over: it ended/m],
    ['when it has the sockets and nothing else', 'go dies', /^kept kept /m],
    ['when it has resumed the sessions', 'resumed dies', /^kept kept /m],
  ])('%s leaves the old process serving', async (_, step, line) => {
    const volume = await start({ replicas: 2 }, { TEST_SUCCESSOR: step })
    const workload = new Workload()
    const running = workload.run(volume)
    for (let time = 0; time < 2; time++) {
      const { written } = workload
      await eventually(() => workload.written > written + 300)
      await handOver(volume, volume.process.pid as number, line)
    }
    const { written } = workload
    await eventually(() => workload.written > written + 300)
    workload.stop()
    await running
    expect(volume.closed).toBe(false)
    expect(await workload.verify(volume)).toBe(0)
    expect(await volume.end('SIGTERM')).toBe(0)
    for (const { server } of servers) expect(server.store.free).toBe(16)
  })

  it.each(['dies', 'hangs'])(
    'and %s with the sockets in its hands leaves the old process the volume',
    async (how) => {
      const volume = await start({ replicas: 2 }, { TEST_SUCCESSOR: `taken ${how}` })
      const workload = new Workload()
      const running = workload.run(volume)
      await eventually(() => workload.written > 300)
      await handOver(volume, volume.process.pid as number, /^kept dead /m)
      await running
      // What the clients repeat then, on other connections, finds everything.
      await volume.end('SIGKILL')
      const next = await start({ replicas: 2 })
      expect(next.output).toMatch(/^degraded 0 lost 0$/m)
      await workload.repeat(next)
      expect(await workload.verify(next)).toBe(0)
    },
    20_000,
  )
})

describe('a successor that hangs', () => {
  async function hangs(step: string, shape: Shape, on: typeof servers): Promise<void> {
    const folder = mkdtempSync(join(state, 'state-'))
    const volume = await start(shape, { TEST_SUCCESSOR: step }, folder, on)
    const workload = new Workload()
    const running = workload.run(volume)
    await eventually(() => workload.written > 300)
    const kept = await handOver(volume, volume.process.pid as number, /^kept kept (\S+) (.*)$/m, 40_000)
    expect(Number(kept[1])).toBeGreaterThanOrEqual(20_000)
    expect(kept[2]).toMatch(/it did not say "taken" within 20000 ms/)
    const { written } = workload
    await eventually(() => workload.written > written + 300)
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
    const refused = /^not started: .* did not say "ready" within 10000 ms/m
    let over = false
    const asked = handOver(volume, volume.process.pid as number, refused, 50_000).finally(() => {
      over = true
    })
    while (!over) {
      const { written } = workload
      await eventually(() => over || workload.written > written + 30, REQUEST_MS)
    }
    await asked
    workload.stop()
    await running
    expect(volume.closed).toBe(false)
    expect(await workload.verify(volume)).toBe(0)
  }

  it('in the kernel, where no signal ends it, is not waited for', async () => {
    const unkillable = vi.spyOn(ChildProcess.prototype, 'kill').mockReturnValue(true)
    try {
      const began = performance.now()
      await expect(Successor.start(['sh', '-c', 'echo nonsense >&3; exec sleep 60'])).rejects.toThrow(
        /sh cannot take over: it said something else/,
      )
      expect(performance.now() - began).toBeLessThan(10_000)
      expect(unkillable).toHaveBeenCalledWith('SIGKILL')
    } finally {
      const children = [...unkillable.mock.contexts] as ChildProcess[]
      unkillable.mockRestore()
      for (const child of children) child.kill('SIGKILL')
    }
  }, 30_000)

  // At the same time, for each waits 20 s and more for nothing.
  it('before it has taken the volume is killed, and the old process serves on and has lost nothing', async () => {
    for (let i = 0; i < 4; i++) await lend(ADDRESSES.shm())
    await Promise.all([
      hangsAtItsStart(servers.slice(3)),
      hangs('go hangs', { replicas: 2 }, servers.slice(0, 2)),
      // Sessions, maps and the backup's file are in its hands.
      hangs('resumed hangs', { replicas: 1, backup: true }, servers.slice(2, 3)),
    ])
  }, 60_000)
})

describe('an old process that dies', () => {
  beforeEach(() => lend(ADDRESSES.shm()))

  it('when its successor has everything is not missed', async () => {
    const volume = await start({ replicas: 1 }, { TEST_PREDECESSOR: 'yours' })
    const workload = new Workload()
    const running = workload.run(volume)
    await eventually(() => workload.written > 300)
    const successor = await handOver(volume, volume.process.pid as number, /^successor (\d+)$/m)
    endWithTest(Number(successor[1]))
    const { written } = workload
    await eventually(() => workload.written > written + 300)
    workload.stop()
    await running
    expect(volume.closed).toBe(false)
    expect(await workload.verify(volume)).toBe(0)
  })

  it('before it gave anything away leaves the successor nothing but a take-over', async () => {
    const volume = await start({ replicas: 1 }, { TEST_PREDECESSOR: 'go' })
    const workload = new Workload()
    const running = workload.run(volume)
    await eventually(() => workload.written > 300)
    await handOver(volume, volume.process.pid as number, /^alone$/m)
    await running
    const next = await start({ replicas: 1 })
    await workload.repeat(next)
    expect(await workload.verify(next)).toBe(0)
  })
})
