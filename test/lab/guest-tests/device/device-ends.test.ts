import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { until } from '../../base/until.js'

/** Takes 75 s more, of the same decisions. */
const ofUblk = process.env.RDMAKIT_TIER === 'soak' ? [{ front: 'ublk', name: 'ublkb1' }] : []

// The end of a device that is in use, that another one has replaced, or that no process can serve any more.
describe.each([{ front: 'nbd', name: 'nbd1' }, ...ofUblk])(
  'a device of nbd-client --front $front',
  ({ front, name }) => {
    const shell = new LocalShell()
    const folder = mkdtempSync(join(tmpdir(), 'device-ends-'))
    const uri = 'rdma://10.77.0.1:7483'
    const client = ['node', 'packages/nbd-client/dist/cli.js']
    const device = `/dev/${name}`
    const attach = [
      ...[...client, 'attach', '--server', uri, '--size', '32M', '--device', device, '--front', front],
      '--no-pin',
    ]
    const keep = [...attach, '--state', join(folder, 'state')]
    const ready = new RegExp(`^attached ${device}$`)
    let server: RunningProcess

    const start = async (command: readonly string[]) => {
      const running = shell.start([...command])
      await running.waitForLine(ready, 60_000)
      return running
    }
    const detach = (...options: string[]) =>
      shell.exec([...client, 'detach', ...options, device], { deadlineMs: 120_000 })
    const isGone = () =>
      shell.run(
        front === 'nbd' ? `test ! -e /sys/block/${name}/pid` : `test ! -e /dev/${name} -a ! -e /dev/ublkc1`,
      )
    const says = (running: RunningProcess, words: RegExp) =>
      until(`it says ${words}`, 60_000, async () => words.test(running.stderr))
    /** Ends a device by its number, like another program. */
    const endByNumber = () => {
      const addon = './packages/nbd-client/build/Release/nbd_client.node'
      return shell.run([
        ...['node', '-e'],
        front === 'nbd' ? `require('${addon}').kernelDisconnect(1)` : `require('${addon}').ublkStop(1)`,
      ])
    }
    const startServer = async () => {
      server = shell.start(['node', 'packages/swap-server/dist/cli.js', '--listen', uri, '--memory', '256M'])
      await server.waitForLine(/^listening /, 60_000)
    }
    /** A program with pages that are swapped out to the device. It touches them when it reads a line. */
    const swappedOut = async () => {
      await shell.run('mkdir -p /sys/fs/cgroup/swapped')
      const touch = `import sys; x = bytearray(b"x" * (8 << 20)); print("here", flush=True); sys.stdin.readline(); sum(x)`
      await shell.run(`rm -f ${folder}/input && mkfifo ${folder}/input`)
      const program = shell.start(
        `echo $$ >/sys/fs/cgroup/swapped/cgroup.procs; exec python3 -c '${touch}' <>${folder}/input`,
      )
      await program.waitForLine(/^here$/, 60_000)
      await shell.exec('echo 8M >/sys/fs/cgroup/swapped/memory.reclaim')
      expect(Number(await shell.run(`awk '/${name}/ { print $4 }' /proc/swaps`))).toBeGreaterThan(1024)
      return program
    }

    beforeAll(async () => {
      await startServer()
      await shell.run('modprobe -a ext4 dm_mod zram && mkdir -p /mnt/held')
    }, 90_000)

    afterAll(async () => {
      await server?.stop()
      rmSync(folder, { recursive: true })
    })

    test('stays while somebody has it, says who, and goes with the last one; SIGHUP ends it as SIGTERM does', async () => {
      const running = await start(attach)
      await shell.run(`echo ${device} >/sys/block/zram0/backing_dev`)
      expect(await detach()).toMatchObject({
        status: 73,
        stderr: expect.stringContaining(`${device} is in use: zram0 is on ${name}; end that first`),
      })
      await shell.run('echo 1 >/sys/block/zram0/reset')
      await shell.run(`dmsetup create held --table '0 65536 linear ${device} 0'`)
      const dm = (await shell.run(`ls /sys/block/${name}/holders`)).trim()
      await shell.run(`mkfs.ext4 -q /dev/${dm} && mount /dev/${dm} /mnt/held`)
      const opener = shell.start(`exec 3<${device}; echo here; exec sleep 600`)
      await opener.waitForLine(/^here$/, 60_000)
      const uses = `${dm} is mounted on /mnt/held; ${dm} is on ${name}; process \\d+ \\(sleep\\) has ${name} open`
      const refused = await detach()
      expect(refused.stderr).toMatch(new RegExp(`${device} is in use: ${uses}; end that first`))
      expect(refused.status).toBe(73)

      running.signal('SIGHUP')
      await says(running, new RegExp(`${uses}; ${device} stays attached`))
      await shell.run('echo kept >/mnt/held/file && sync && umount /mnt/held && dmsetup remove held')
      await says(
        running,
        new RegExp(`nbd-client: process \\d+ \\(sleep\\) has ${name} open; ${device} stays`),
      )
      opener.signal('SIGKILL')
      expect(await running.ended(60_000)).toMatchObject({ status: 0 })
      await isGone()
    }, 120_000)

    test('that somebody else ends is noticed, and its process ends with an error', async () => {
      const running = await start(attach)
      await endByNumber()
      const { status, stderr } = await running.ended(60_000)
      expect(stderr).toContain(`${device} was detached by another program`)
      expect(status).toBe(1)
      await shell.exec([...client, 'detach', device])
      await isGone()
    }, 90_000)

    test('that no process and no server has any more is let go by detach --force, and before that refused in time', async () => {
      const running = await start([...keep, '--swap'])
      const program = await swappedOut()
      for (const each of [running, server]) {
        each.signal('SIGKILL')
        await each.exited
      }
      const refused = await detach('--timeout', '10')
      expect(refused.stderr).toContain('only its next nbd-client can bring back')
      expect(refused.status).toBe(73)
      expect(await detach('--force', '--timeout', '10')).toMatchObject({ status: 0 })
      expect(await shell.run('cat /proc/swaps')).not.toContain(name)
      await isGone()
      // Its pages are lost, and it gets no other bytes: SIGBUS, or SIGSEGV where the kernel itself writes to one (rseq).
      await shell.run(`echo >${folder}/input`)
      expect([7, 11]).toContain((await program.ended(60_000)).signal)
      await shell.run(`rm -r ${folder}/state`)
      await startServer()
    }, 180_000)

    test('whose process hangs is told of, and ends with --force', async () => {
      const running = await start(keep)
      running.signal('SIGSTOP')
      const refused = await detach()
      expect(refused.stderr).toMatch(/process \d+ does not answer, and may hold it/)
      expect(refused.status).toBe(69)
      expect(await detach('--force', '--timeout', '1')).toMatchObject({ status: 0 })
      running.signal('SIGCONT')
      const { status, signal } = await running.ended(60_000)
      expect({ status, signal }).toMatchObject(front === 'nbd' ? { status: 1 } : { signal: 9 })
      await isGone()
      await shell.run(`rm -rf ${folder}/state`)
    }, 120_000)

    test('is pulled from who uses it with --force', async () => {
      const running = await start(attach)
      const opener = shell.start(`exec 3<${device}; echo here; exec sleep 600`)
      await opener.waitForLine(/^here$/, 60_000)
      // Its process answers, so --timeout is not waited for.
      const pulled = await detach('--force')
      expect(pulled.status).toBe(0)
      if (front === 'nbd')
        expect(pulled.stderr).toMatch(/is gone when it is no longer in use: process \d+ \(sleep\)/)
      expect(await running.ended(60_000)).toMatchObject({ status: 0 })
      opener.signal('SIGKILL')
      await opener.exited
      if (front === 'ublk') await shell.exec([...client, 'detach', device])
      await isGone()
    }, 120_000)

    // A device of ublk is not ended before its process is.
    if (front === 'nbd')
      test('of its number that another process has is left alone', async () => {
        const before = await start(attach)
        before.signal('SIGSTOP')
        await endByNumber()
        const now = await start([...attach, '--swap'])
        // It may come to end its device before it has noticed that there is none.
        before.signal('SIGTERM')
        before.signal('SIGCONT')
        await before.ended(60_000)
        expect(await shell.run('cat /proc/swaps')).toContain(device)
        await shell.run(`dd if=${device} of=/dev/null bs=1M iflag=direct status=none`)
        expect(await detach()).toMatchObject({ status: 0 })
        expect(await now.ended(60_000)).toMatchObject({ status: 0 })
        await isGone()
      }, 120_000)
  },
)
