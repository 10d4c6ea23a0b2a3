import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { until } from '../../base/until.js'
import { rdmakitSwap } from '../../swap/remote-swap.js'

/** What starts itself again in a group, and its successor, is started by its own command line: here not that of nbd-client. */
const program = ['packages/rdmakit/bin/rdmakit.js']
const groups = '/sys/fs/cgroup'
const startMs = 120_000

// That nothing of it is swapped when memory is short: ../memory-storm.ts.
describe('an nbd-client that is started from a shell in the root control group', () => {
  const shell = new LocalShell()
  const { serve, listening, attach, attached } = rdmakitSwap('rdma://10.77.0.1:7480', '128M', '64M')
  const words = (attach as string[]).slice((attach as string[]).indexOf('attach'))
  const kept = [...program, ...words, '--state', '/run/rdmakit/swap-free', '--backup', '/dev/vda']
  const clients: RunningProcess[] = []
  let server: RunningProcess

  const start = async (command: string[] | string): Promise<RunningProcess> => {
    const client = shell.start(command)
    clients.push(client)
    await client.waitForLine(attached, startMs)
    return client
  }
  const pid = async (): Promise<number> => {
    const { clients } = JSON.parse(await shell.run([...program, 'status', '--json']))
    return clients[0].pid
  }
  const commandOf = (process: number) => readFileSync(`/proc/${process}/cmdline`, 'utf8').split('\0')
  const groupOf = (process: number) =>
    /^0::(.*)$/m.exec(readFileSync(`/proc/${process}/cgroup`, 'utf8'))?.[1] as string
  const own = () => readdirSync(groups).filter((name) => name.startsWith('rdmakit-nbd-'))
  /** KiB of a process, and of a group, that only swap could take. */
  const anonymous = (process: number) =>
    Number(/^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${process}/status`, 'utf8'))?.[1])
  const charged = (group: string) =>
    Number(/^anon (\d+)$/m.exec(readFileSync(`${groups}${group}/memory.stat`, 'utf8'))?.[1]) / 1024

  beforeAll(async () => {
    expect(groupOf(process.pid)).toBe('/')
    server = shell.start(serve)
    await server.waitForLine(listening, startMs)
  }, startMs)

  afterAll(async () => {
    await shell.exec([...program, 'detach', '/dev/nbd0'], { deadlineMs: startMs })
    for (const client of clients) await client.stop()
    await server?.stop()
  }, startMs)

  test('has all its memory in a group without swap', async () => {
    const client = await start(kept)
    expect(client.stderr).not.toContain('warning')
    const first = await pid()
    expect(commandOf(first).join(' ')).toMatch(/\/packages\/rdmakit\/bin\/rdmakit\.js attach --server /)
    expect(own()).toEqual([`rdmakit-nbd-${first}`])
    const group = groupOf(first)
    expect(group).toBe(`/rdmakit-nbd-${first}`)
    expect(readFileSync(`${groups}${group}/memory.swap.max`, 'utf8').trim()).toBe('0')
    const outside = anonymous(first) - charged(group)
    console.log(`of ${anonymous(first)} KiB ${Math.round(outside)} are charged elsewhere`)
    // The kernel counts a thread's pages up to 64 at a time. A Node.js has 20 MiB before it runs our first line.
    expect(anonymous(first)).toBeGreaterThan(20 * 1024)
    expect(outside).toBeLessThan(4 * 1024)
  })

  test('has no thread that would write to the device to get memory', async () => {
    // proc_pid_stat(5): flags are the seventh field behind the name; PF_MEMALLOC_NOIO is what PR_SET_IO_FLUSHER sets.
    const behindName = (stat: string) => stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    const waits = (stat: string) => (Number(behindName(stat)[6]) & 0x0008_0000) === 0
    const tasks = `/proc/${await pid()}/task`
    const threads = readdirSync(tasks).map((thread) => readFileSync(`${tasks}/${thread}/stat`, 'utf8'))
    // JavaScript's, V8's, the provider's and the lanes'.
    expect(threads.length).toBeGreaterThan(6)
    expect(threads.filter(waits)).toEqual([])
    // And those that move pages may have memory of the kernel's reserve: the policy is the 39th field, SCHED_RR is 2.
    for (const name of ['(nbd-lane-', '(volume-backup)']) {
      const movers = threads.filter((stat) => stat.includes(name))
      expect(movers.map((stat) => behindName(stat)[38])).toEqual(movers.map(() => '2'))
      expect(movers.length, name).toBeGreaterThan(0)
    }
  })

  test('leaves the group to its successor, and the one after a crash clears it away', async () => {
    const first = await pid()
    const command = commandOf(first)
    await shell.run([...program, 'upgrade', '/dev/nbd0'], { deadlineMs: startMs })
    await clients[0]?.ended(60_000)
    const second = await pid()
    expect(second).not.toBe(first)
    expect(commandOf(second)).toEqual(command)
    expect(groupOf(second)).toBe(`/rdmakit-nbd-${first}`)
    process.kill(second, 'SIGKILL')
    await until('the successor is gone', 60_000, () => !existsSync(`/proc/${second}`))
    expect(own()).toEqual([`rdmakit-nbd-${first}`])
    await start(kept)
    const third = await pid()
    expect(groupOf(third)).toBe(`/rdmakit-nbd-${third}`)
    expect(own()).toEqual([`rdmakit-nbd-${third}`])
  })

  test('takes its group along when it ends', async () => {
    await shell.run([...program, 'detach', '/dev/nbd0'], { deadlineMs: startMs })
    await clients.at(-1)?.ended(60_000)
    expect(own()).toEqual([])
  })

  test("stays in somebody's group, with a warning", async () => {
    await shell.run(`mkdir -p ${groups}/somebody`)
    const client = await start(`echo $$ >${groups}/somebody/cgroup.procs && exec ${kept.join(' ')}`)
    expect(groupOf(await pid())).toBe('/somebody')
    expect(client.stderr).toContain(
      'memory.swap.max 0 was not granted: the process is in /somebody: run it as a service with MemorySwapMax=0',
    )
    await client.stop()
    await shell.run(`rmdir ${groups}/somebody`)
  })
})
