import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { lender } from '../lender.js'

const FENCED = 79
/** Of ublk it takes half a minute more: who fences does not know what is in front of the volume. */
const ofUblk = process.env.RDMAKIT_TIER === 'soak' ? [['ublk', 'ublkb2'] as const] : []
const fronts = [['nbd', 'nbd2'] as const, ...ofUblk]

// A second process comes to a device that is served, with a copy of its state folder (docs/page-service/fencing.md).
describe.each(fronts)('a device of %s whose volume another process takes over', (front, name) => {
  const shell = new LocalShell()
  let uri: string
  const client = ['node', 'packages/nbd-client/dist/cli.js']
  const device = `/dev/${name}`
  const first = `/run/rdmakit/fenced-${front}-first`
  const second = `/run/rdmakit/fenced-${front}-second`
  const attach = (state: string) =>
    shell.start([
      ...[...client, 'attach', '--server', uri, '--size', '32M', '--device', device, '--front', front],
      ...['--state', state],
    ])
  const attached = new RegExp(`^attached ${device}$`)
  let old: RunningProcess
  let taker: RunningProcess

  beforeAll(async () => {
    uri = (await lender()).uri
    old = attach(first)
    await old.waitForLine(attached, 60_000)
  })

  afterAll(async () => {
    await taker?.stop()
    await old?.stop()
    await shell.run(`rm -rf ${first} ${second} /tmp/pattern /tmp/back`)
  })

  test('is left to that one, with all that was written, by one that stops', async () => {
    await shell.run('dd if=/dev/urandom of=/tmp/pattern bs=1M count=32 status=none')
    await shell.run(`dd if=/tmp/pattern of=${device} bs=1M oflag=direct status=none`)
    await shell.run(`cp -a ${first} ${second}`)
    taker = attach(second)
    expect(await old.exited).toMatchObject({ status: FENCED })
    expect(old.stderr).toMatch(/another process has taken the volume over: .*; this process stops/)
    await taker.waitForLine(attached, 60_000)
    await shell.run(`dd if=${device} of=/tmp/back bs=1M iflag=direct status=none`)
    await shell.run('cmp /tmp/pattern /tmp/back')
  }, 120_000)

  test('ends in good order with that one', async () => {
    expect(await taker.stop(60_000)).toMatchObject({ status: 0 })
    await shell.run(
      `test ! -e /sys/block/${name}/pid && test ! -e /dev/ublkc2 && test ! -e ${second}/volume.json`,
    )
  }, 120_000)
})
