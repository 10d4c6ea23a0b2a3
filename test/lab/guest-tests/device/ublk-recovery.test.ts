import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { until } from '../../base/until.js'
import { lender } from '../lender.js'

// Processes that die where the driver leaves it to the next one to find out how far they had come.
describe('nbd-client attach --front ublk', () => {
  const shell = new LocalShell()
  const folder = mkdtempSync(join(tmpdir(), 'ublk-recovery-'))
  const device = '/dev/ublkb4'
  const client = ['node', 'packages/nbd-client/dist/cli.js']
  let attach: string[]
  let keep: string[]
  const attached = new RegExp(`^attached ${device}$`)
  const addon = resolve('packages/nbd-client/build/Release/nbd_client.node')

  /**
   * The environment of a process that dies in the place of that call of the addon: at once, or when its lanes have done on
   * their own what they were told before.
   */
  const diesAt = (call: string, atOnce = false) => {
    const preload = join(folder, `${call}.cjs`)
    const die = "process.kill(process.pid, 'SIGKILL')"
    writeFileSync(
      preload,
      `require(${JSON.stringify(addon)}).${call} = () =>
         ${atOnce ? die : `new Promise(() => setTimeout(() => ${die}, 1000))`}`,
    )
    return { NODE_OPTIONS: `--require=${preload}` }
  }
  const sum = () => shell.run(`dd if=${device} bs=64k count=4 iflag=direct status=none | sha256sum`)
  const write = () =>
    shell.run(`dd if=/dev/urandom of=${device} bs=64k count=4 oflag=direct status=none`).then(sum)
  const start = async (command: readonly string[], deadlineMs = 60_000) => {
    const running = shell.start([...command])
    await running.waitForLine(attached, deadlineMs)
    return running
  }
  const kill = async (running: RunningProcess) => {
    running.signal('SIGKILL')
    await running.exited
  }

  beforeAll(async () => {
    const { uri } = await lender()
    attach = [
      ...[...client, 'attach', '--server', uri, '--size', '16M', '--front', 'ublk', '--device', device],
    ]
    keep = [...attach, '--state', join(folder, 'state')]
  })

  afterAll(() => rmSync(folder, { recursive: true }))

  test('goes on where processes died that were about to go on', async () => {
    await kill(await start(keep))
    const reading = shell.start(`dd if=${device} bs=64k count=1 iflag=direct status=none | sha256sum`)
    // When it has recovered the device and serves no queue, and when it serves each.
    for (const call of ['attachDevice', 'ublkResume'])
      expect(await shell.exec(keep, { env: diesAt(call) })).toMatchObject({ signal: 9 })
    const last = await start(keep)
    expect((await reading.ended(60_000)).status).toBe(0)
    const written = await write()
    await kill(last)
    // One that cannot ask for the device does not take it for gone.
    const blind = await shell.exec(
      `unshare --mount sh -c 'mount --bind /dev/null /dev/ublk-control && exec ${keep.join(' ')}'`,
    )
    expect(blind.stderr).toContain("/dev/ublk-control is not the ublk driver's")
    expect(blind.status).not.toBe(0)
    const next = await start(keep)
    expect(next.stderr).toContain(`taking over ${device}`)
    expect(await sum()).toBe(written)
    expect(await next.stop()).toMatchObject({ status: 0 })
    expect(readdirSync('/dev').filter((name) => name.startsWith('ublk'))).toEqual(['ublk-control'])
  }, 180_000)

  test('goes on in the old process when its successor dies, whatever it had done', async () => {
    const running = await start(keep)
    const written = await write()
    // Before the kernel hears of it, when it has recovered the device and serves no queue, and when it serves each.
    for (const call of ['ublkRecover', 'attachDevice', 'ublkResume']) {
      const environment = Object.entries(diesAt(call, call === 'ublkRecover')).map(
        ([name, value]) => `${name}=${value}`,
      )
      const upgrade = await shell.exec([...client, 'upgrade', device, '--', 'env', ...environment, ...keep], {
        deadlineMs: 60_000,
      })
      expect(upgrade.stderr).toMatch(/^nbd-client: the successor failed: .*process \d+ keeps/m)
      expect(upgrade.status).toBe(1)
      expect(await sum()).toBe(written)
    }
    await shell.run([...client, 'upgrade', device, '--', ...keep], { deadlineMs: 60_000 })
    expect(await running.exited).toMatchObject({ status: 0 })
    expect(await sum()).toBe(written)
    await shell.run([...client, 'detach', device])
    expect(readdirSync('/dev').filter((name) => name.startsWith('ublk'))).toEqual(['ublk-control'])
  }, 180_000)

  test('is not ended while pages are swapped out to it that only its next process can bring back', async () => {
    const running = await start([...keep, '--swap'])
    await shell.run('mkdir /sys/fs/cgroup/recovery')
    const program = shell.start(
      `echo $$ >/sys/fs/cgroup/recovery/cgroup.procs; exec python3 -c 'import time; x = bytearray(b"x" * (8 << 20)); print("here", flush=True); time.sleep(600)'`,
    )
    await program.waitForLine(/^here$/, 60_000)
    await shell.exec('echo 8M >/sys/fs/cgroup/recovery/memory.reclaim')
    expect(Number(await shell.run(`awk '/ublkb4/ { print $4 }' /proc/swaps`))).toBeGreaterThan(1024)
    await kill(running)
    const { status, stderr } = await shell.exec([...client, 'detach', device])
    expect(stderr).toContain('repeat the command that attached it')
    expect(status).toBe(73)
    expect(await (await start([...keep, '--swap'])).stop(60_000)).toMatchObject({ status: 0 })
    await kill(program)
    await until(
      'the group is empty',
      10_000,
      async () => (await shell.exec('rmdir /sys/fs/cgroup/recovery')).status === 0,
    )
    expect(readdirSync('/dev').filter((name) => name.startsWith('ublk'))).toEqual(['ublk-control'])
  }, 120_000)

  test('is pulled from who has the disk, and what is left of it goes when he has let go', async () => {
    const running = await start(attach)
    const holder = shell.start(`exec 3<${device}; echo here; exec sleep 600`)
    await holder.waitForLine(/^here$/, 60_000)
    await shell.run([...client, 'detach', '--force', device], { deadlineMs: 60_000 })
    const { status, stderr } = await running.ended(60_000)
    expect(status).toBe(0)
    expect(stderr).toContain(
      `${device} is in use: when it no longer is, "nbd-client detach ${device}" removes the rest of it`,
    )
    // The waiting call does not delay it.
    const other = await shell.exec([...client, 'detach', device])
    expect(other.stderr).toContain(`${device} is in use`)
    await kill(holder)
    await shell.run([...client, 'detach', device])
    expect(readdirSync('/dev').filter((name) => name.startsWith('ublk'))).toEqual(['ublk-control'])
  }, 120_000)

  test('without --state fails what its process has not answered, and is made anew by the same command', async () => {
    await kill(await start(attach))
    await until('the kernel has ended it', 20_000, async () => !readdirSync('/dev').includes('ublkb4'))
    expect(readdirSync('/dev')).toContain('ublkc4')
    const again = await start(attach)
    expect(await again.stop()).toMatchObject({ status: 0 })
    expect(readdirSync('/dev').filter((name) => name.startsWith('ublk'))).toEqual(['ublk-control'])
  }, 120_000)
})
