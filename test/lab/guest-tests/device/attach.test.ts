import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { effort } from '../../../effort.js'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { lender } from '../lender.js'

/** MiB of the device that each of four writers has. */
const share = Math.min(16, effort(8))

// The commands of nbd-client on a real kernel device, without swap.
describe.each([
  // KiB of a request while attached; and after, where the driver's devices stay
  { front: 'nbd', name: 'nbd1', requests: 512, usual: 128 },
  { front: 'ublk', name: 'ublkb1', requests: 256, usual: undefined },
])('nbd-client attach --front $front', ({ front, name, requests, usual }) => {
  const shell = new LocalShell()
  const client = ['node', 'packages/nbd-client/dist/cli.js']
  const device = `/dev/${name}`
  let attach: string[]
  const ready = new RegExp(`^attached ${device}$`)
  const sysfs = (file: string) => shell.run(`cat /sys/block/${name}/${file}`)
  /** There, and as the driver made it, or not there. */
  const isGone = async () => {
    if (usual === undefined) {
      await shell.run(`test ! -e /sys/block/${name} && test ! -e /dev/ublkc1`)
    } else {
      await shell.run(`test ! -e /sys/block/${name}/pid`)
      expect(await sysfs('queue/max_sectors_kb')).toBe(`${usual}\n`)
    }
  }
  let attached: RunningProcess

  beforeAll(async () => {
    const { uri } = await lender()
    attach = [
      ...[...client, 'attach', '--server', uri, '--size', '64M', '--device', device, '--front', front],
    ]
    attached = shell.start(attach)
    await attached.waitForLine(ready, 60_000)
  })

  afterAll(async () => {
    await attached?.stop()
  })

  test('makes a block device of the right size that keeps what is written', async () => {
    expect((await sysfs('size')).trim()).toBe(String((64 * 2 ** 20) / 512))
    await shell.run('dd if=/dev/urandom of=/tmp/pattern bs=1M count=48 status=none')
    await shell.run(`dd if=/tmp/pattern of=${device} bs=1M oflag=direct status=none`)
    await shell.run(`dd if=${device} of=/tmp/back bs=1M count=48 iflag=direct status=none`)
    await shell.run('cmp /tmp/pattern /tmp/back')
    await shell.run('rm /tmp/pattern /tmp/back')
  })

  test(`takes requests of ${requests} KiB`, async () => {
    expect(await sysfs('queue/max_sectors_kb')).toBe(`${requests}\n`)
  })

  test('answers with what was written last, of four writers at depth 16, also after discards', async () => {
    await shell.run(
      `fio --name=verify --filename=${device} --rw=randtrimwrite --bs=16k --direct=1 --ioengine=libaio \
        --iodepth=16 --numjobs=4 --size=${share}M --offset_increment=${share}M --minimal >/dev/null`,
    )
    await shell.run(
      `fio --name=verify --filename=${device} --rw=randwrite --bs=16k --direct=1 --ioengine=libaio \
        --iodepth=16 --numjobs=4 --size=${share}M --offset_increment=${share}M --verify=crc32c --verify_fatal=1 --minimal >/dev/null`,
    )
    await shell.run(`blkdiscard ${device}`)
    await shell.run(`cmp -n ${4 * share * 2 ** 20} ${device} /dev/zero`)
  }, 60_000)

  test('is served on the processors that its requests come from', async () => {
    const lanes = await shell.run(
      'for q in 0 1; do t=$(grep -slx nbd-lane-$q /proc/[0-9]*/task/*/comm); grep -h -e Name: -e Cpus_allowed_list: $(dirname $t)/status; done | cut -f 2',
    )
    const queues = await shell.run(
      `for q in 0 1; do echo nbd-lane-$q; cat /sys/block/${name}/mq/$q/cpu_list; done`,
    )
    expect(queues).toBe('nbd-lane-0\n0\nnbd-lane-1\n1\n')
    expect(lanes).toBe(queues)
  })

  test('refuses a device that is busy, in one line that says what to do', async () => {
    const { status, stderr } = await shell.exec(attach)
    expect(status).toBe(73)
    expect(stderr.trimEnd()).toMatch(new RegExp(`^nbd-client: ${device} is busy: .*detach ${device}"$`))
  })

  test('is told of by status', async () => {
    const [status] = JSON.parse(await shell.run([...client, 'status', '--json']))
    expect(status).toMatchObject({ mode: 'attach', target: device, size: 64 * 2 ** 20, swap: false })
    expect(await shell.run([...client, 'status'])).toMatch(new RegExp(`${device} .* 64 MiB `))
  })

  test('ends with detach, and the device with it', async () => {
    await shell.run([...client, 'detach', device])
    expect(await attached.ended(60_000)).toMatchObject({ status: 0 })
    await isGone()
    const { status, stderr } = await shell.exec([...client, 'detach', device])
    expect(status).toBe(1)
    expect(stderr).toMatch(/not attached/)
  })

  test('ends a device whose process was killed, which is as the driver made it then', async () => {
    const killed = shell.start([...attach, '--state', '/run/rdmakit-attach-test'])
    await killed.waitForLine(ready, 60_000)
    killed.signal('SIGKILL')
    await killed.exited
    expect(await sysfs('queue/max_sectors_kb')).toBe(`${requests}\n`)
    const { status, stderr } = await shell.exec([...client, 'detach', device])
    expect({ status, stderr }).toEqual({
      status: 0,
      stderr: `nbd-client: no running nbd-client holds ${device}; ending the device itself\n`,
    })
    await isGone()
  })
})
