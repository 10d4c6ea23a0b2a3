import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { lender } from '../lender.js'

// FS_IOC_SHUTDOWN without flushing the log: from here on the file system writes nothing more, as if the power
// were gone (include/uapi/linux/fs.h, xfstests' "godown").
const CRASH = `
import fcntl, os, struct
fcntl.ioctl(os.open("/mnt/nbd", os.O_RDONLY), 0x8004587d, struct.pack("I", 2))
`
// Files that are synced one by one while others are under way, so that the journal is busy at the crash.
const WRITER = `
import hashlib, os
for i in range(200):
    data = hashlib.sha256(str(i).encode()).digest() * 512
    with open(f"/mnt/nbd/synced.{i}", "wb") as f:
        f.write(data)
        if i % 4 == 0:
            os.fsync(f.fileno())
`
const READER = `
import hashlib
for i in range(0, 200, 4):
    data = hashlib.sha256(str(i).encode()).digest() * 512
    assert open(f"/mnt/nbd/synced.{i}", "rb").read() == data, i
print("all there")
`

describe.each(['/dev/nbd2', '/dev/ublkb2'])('ext4 on %s', (device) => {
  const shell = new LocalShell()
  const python = (script: string) => shell.run(['python3', '-c', script])
  let attached: RunningProcess

  beforeAll(async () => {
    const { uri } = await lender()
    attached = shell.start([
      ...['node', 'packages/nbd-client/dist/cli.js', 'attach', '--server', uri, '--size', '128M'],
      ...['--device', device, '--front', device.startsWith('/dev/nbd') ? 'nbd' : 'ublk'],
    ])
    await attached.waitForLine(new RegExp(`^attached ${device}$`), 60_000)
    await shell.run('modprobe ext4 && mkdir -p /mnt/nbd')
  }, 90_000)

  afterAll(async () => {
    await shell.exec('umount /mnt/nbd')
    await attached?.stop()
  })

  test('a crash in the middle of writing loses nothing that was synced, and fsck finds nothing wrong', async () => {
    await shell.run(`mkfs.ext4 -q -E discard ${device}`)
    await shell.run(`mount -o discard ${device} /mnt/nbd`)
    await python(WRITER)
    await python(CRASH)
    expect((await shell.exec('touch /mnt/nbd/after')).status).not.toBe(0)
    await shell.run('umount /mnt/nbd')
    await shell.run(`mount ${device} /mnt/nbd`) // replays the journal
    expect(await python(READER)).toContain('all there')
    await shell.run('umount /mnt/nbd')
    const { status, stdout } = await shell.exec(`fsck.ext4 -fn ${device}`)
    expect({ status, stdout }).toMatchObject({ status: 0 })
  })
})
