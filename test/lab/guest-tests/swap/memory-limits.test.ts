import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'

const mebibyte = 1024 * 1024
const limit = 160 * mebibyte
const group = '/sys/fs/cgroup/limited'
const run = '/run/rdmakit-limited'

// As in a container: a group with a limit, whose namespace has it for its root, and cgroup v2 mounted in there.
describe('a swap-server in a control group with a limit', () => {
  const shell = new LocalShell()
  const server = 'node packages/swap-server/dist/cli.js'
  let running: RunningProcess
  let uri: string

  beforeAll(async () => {
    await shell.run(`mkdir ${group} && echo ${limit} >${group}/memory.max`)
    running = shell.start(
      `echo $$ >${group}/cgroup.procs; export RDMAKIT_RUN=${run}
      exec unshare --cgroup --mount sh -c '
        set -e
        umount /sys/fs/cgroup
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        cat /proc/self/cgroup
        exec ${server} --listen iwarp://127.0.0.1:0 --memory 1G --overcommit --slab-size 8M'`,
    )
    const [, address] = await running.waitForLine(/^listening (\S+)/, 60_000)
    uri = address as string
  }, 120_000)

  afterAll(async () => {
    await running?.stop()
    await shell.run(`rmdir ${group}`)
  }, 60_000)

  test('sees that limit, and offers no more', async () => {
    expect(running.stdout).toMatch(/^0::\/$/m)
    const [status] = JSON.parse(await shell.run(`RDMAKIT_RUN=${run} ${server} status --json`))
    expect(status.totalSlabs).toBe(128)
    const offered = status.freeSlabs * status.slabSize
    expect(offered).toBeLessThan(limit)
    expect(offered).toBeGreaterThan(0)
    // 5 % of what the group may have, not of the machine; twice that while it stalls for memory, as at the start.
    expect([limit / 20, limit / 10]).toContain(status.pressure.headroomBytes)
    expect(running.stderr).toContain('the memory limit of /sys/fs/cgroup')
  })

  test('gives what it offers, and no more', async () => {
    const serve = (size: number) =>
      `RDMAKIT_RUN=${run} exec node packages/nbd-client/dist/cli.js serve --server ${uri} --size ${size} --connections 1 --unix /run/limited.sock`
    const refused = await shell.exec(serve(limit))
    expect(refused.stderr).toMatch(/can lend \d+ MiB, the volume needs 160 MiB/)
    expect(refused.status).toBe(69)
    const [status] = JSON.parse(await shell.run(`RDMAKIT_RUN=${run} ${server} status --json`))
    // One slab is for the client's spare.
    const client = shell.start(serve((status.freeSlabs - 2) * status.slabSize))
    await client.waitForLine(/^ready /, 60_000)
    expect(await client.stop()).toMatchObject({ status: 0 })
    expect(await shell.run(`grep oom_kill ${group}/memory.events`)).toMatch(/^oom_kill 0$/m)
  }, 120_000)
})

// Over shm all memory is a memfd's: a page of it that the kernel refuses ends who touches it, here or at a peer.
describe('memory over shm that is to become resident as it is used', () => {
  const script = `
    import { readFileSync } from "node:fs"
    import { openDevice } from "@rdmakit/verbs"
    const context = openDevice("shm0", "shm")
    const domain = context.allocateProtectionDomain()
    for (const access of ["remote-write", "local-write"])
      await domain.allocateMemoryRegion(8 * ${mebibyte}, [access], { populated: false })
    const smaps = readFileSync("/proc/self/smaps", "utf8")
    console.log(...[...smaps.matchAll(/memfd:rdmakit-segment[^]*?Rss: +(\\d+) kB/g)].map((one) => one[1]))
    process.exit(0)`

  test('is resident from the start where the kernel accounts strictly', async () => {
    const shell = new LocalShell()
    const resident = () => shell.run(`node --input-type=module -e '${script}'`)
    expect((await resident()).trim()).toBe('0 0')
    // As much as anybody wants: only the accounting is strict.
    await shell.run('sysctl -q vm.overcommit_ratio=10000 vm.overcommit_memory=2')
    try {
      expect((await resident()).trim()).toBe('8192 8192')
    } finally {
      await shell.run('sysctl -q vm.overcommit_memory=0')
    }
  }, 60_000)
})
