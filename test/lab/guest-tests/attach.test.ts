import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../local-shell.js'
import type { RunningProcess } from '../shell.js'

// The commands of nbd-client on a real kernel device, without swap.
describe('nbd-client attach', () => {
  const shell = new LocalShell()
  const uri = 'rdma://10.77.0.1:7473'
  const client = ['node', 'packages/nbd-client/dist/cli.js']
  const attach = [...client, 'attach', '--server', uri, '--size', '64M', '--device', '/dev/nbd1']
  let server: RunningProcess
  let attached: RunningProcess

  beforeAll(async () => {
    server = shell.start(['node', 'packages/swap-server/dist/cli.js', '--listen', uri, '--memory', '128M'])
    await server.waitForLine(/^listening /, 30_000)
    attached = shell.start(attach)
    await attached.waitForLine(/^attached \/dev\/nbd1$/, 30_000)
  })

  afterAll(async () => {
    await attached?.stop()
    await server?.stop()
  })

  test('makes a block device of the right size that keeps what is written', async () => {
    expect((await shell.run('cat /sys/block/nbd1/size')).trim()).toBe(String((64 * 2 ** 20) / 512))
    await shell.run('dd if=/dev/urandom of=/tmp/pattern bs=1M count=48 status=none')
    await shell.run('dd if=/tmp/pattern of=/dev/nbd1 bs=1M oflag=direct status=none')
    await shell.run('dd if=/dev/nbd1 of=/tmp/back bs=1M count=48 iflag=direct status=none')
    await shell.run('cmp /tmp/pattern /tmp/back')
    await shell.run('rm /tmp/pattern /tmp/back')
  })

  test('takes requests of 512 KiB', async () => {
    expect(await shell.run('cat /sys/block/nbd1/queue/max_sectors_kb')).toBe('512\n')
  })

  test('is served on the processors that its requests come from', async () => {
    const lanes = await shell.run(
      'for t in /proc/[0-9]*/task/*; do grep -qx "nbd-lane-[01]" $t/comm && grep -h -e Name: -e Cpus_allowed_list: $t/status; done | cut -f 2',
    )
    const queues = await shell.run(
      'for q in 0 1; do echo nbd-lane-$q; cat /sys/block/nbd1/mq/$q/cpu_list; done',
    )
    expect(queues).toBe('nbd-lane-0\n0\nnbd-lane-1\n1\n')
    expect(lanes).toBe(queues)
  })

  test('refuses a device that is busy, in one line that says what to do', async () => {
    const { status, stderr } = await shell.exec(attach)
    expect(status).toBe(73)
    expect(stderr.trimEnd()).toMatch(/^nbd-client: \/dev\/nbd1 is busy: .*detach \/dev\/nbd1"$/)
  })

  test('is told of by status', async () => {
    const [status] = JSON.parse(await shell.run([...client, 'status', '--json']))
    expect(status).toMatchObject({ mode: 'attach', target: '/dev/nbd1', size: 64 * 2 ** 20, swap: false })
    expect(await shell.run([...client, 'status'])).toMatch(/\/dev\/nbd1 .* 64 MiB /)
  })

  test('ends with detach, and the device with it', async () => {
    await shell.run([...client, 'detach', '/dev/nbd1'])
    expect(await attached.ended(10_000)).toMatchObject({ status: 0 })
    await shell.run('test ! -e /sys/block/nbd1/pid')
    expect(await shell.run('cat /sys/block/nbd1/queue/max_sectors_kb')).toBe('128\n')
    const { status, stderr } = await shell.exec([...client, 'detach', '/dev/nbd1'])
    expect(status).toBe(1)
    expect(stderr).toMatch(/not attached/)
  })

  test('ends a device whose process was killed, which is as the driver made it then', async () => {
    const killed = shell.start([...attach, '--state', '/run/rdmakit-attach-test'])
    await killed.waitForLine(/^attached \/dev\/nbd1$/, 30_000)
    killed.signal('SIGKILL')
    await killed.exited
    expect(await shell.run('cat /sys/block/nbd1/queue/max_sectors_kb')).toBe('512\n')
    const { status, stderr } = await shell.exec([...client, 'detach', '/dev/nbd1'])
    expect({ status, stderr }).toEqual({
      status: 0,
      stderr: 'nbd-client: no running nbd-client holds /dev/nbd1; ending the device itself\n',
    })
    await shell.run('test ! -e /sys/block/nbd1/pid')
    expect(await shell.run('cat /sys/block/nbd1/queue/max_sectors_kb')).toBe('128\n')
  })
})
