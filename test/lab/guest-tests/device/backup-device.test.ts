import { afterAll, beforeAll, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'

const bytes = 1024 * 1024
const folder = '/run/rdmakit-backup-device'
const server = 'iwarp://127.0.0.1:7481'
const shell = new LocalShell()
const running: RunningProcess[] = []

beforeAll(() => shell.run(`modprobe loop && mkdir -p ${folder}`), 60_000)

afterAll(async () => {
  for (const each of running) await each.stop(60_000, 'SIGKILL')
  await shell.run(`rm -r ${folder}`)
}, 180_000)

async function start(program: string, words: string, ready: RegExp): Promise<RunningProcess> {
  const started = shell.start(['node', `packages/${program}/dist/cli.js`, ...words.split(' ')])
  running.push(started)
  await started.waitForLine(ready, 60_000)
  return started
}

// Loop devices: that size of a block device which its user wants.
test.each([
  ['as large as the volume', bytes, true],
  ['with room for a header behind it', bytes + 4096, false],
])(
  'a backup on a block device %s outlives its process and the servers',
  async (_, size, warned) => {
    const image = `${folder}/${size}`
    const device = (await shell.run(`truncate -s ${size} ${image} && losetup --show -f ${image}`)).trim()
    const state = `--state ${folder}/state-${size} --unix ${folder}/${size}.sock`
    const serve = `serve --server ${server} --size ${bytes} --connections 1 ${state} --backup ${device} --ack backup`
    const use = (command: string) =>
      shell.run(['qemu-io', '-f', 'raw', '-c', command, `nbd+unix:///?socket=${folder}/${size}.sock`])
    try {
      const lender = await start('swap-server', `--listen ${server} --memory 4M --slab-size 1M`, /^listening/)
      const first = await start('nbd-client', serve, /^ready/)
      await use(`write -P 7 0 ${bytes}`)
      for (const each of [first, lender]) await each.stop(60_000, 'SIGKILL')
      const second = await start('nbd-client', serve, /^ready/)
      expect(await use(`read -P 7 0 ${bytes}`)).not.toMatch(/fail|error/i)
      await second.stop(60_000, 'SIGKILL')
      for (const { stderr } of [first, second]) {
        expect(stderr.includes('no room for a header')).toBe(warned)
        expect(stderr).not.toContain('something else has been written')
      }
    } finally {
      await shell.run(['losetup', '-d', device])
    }
  },
  300_000,
)
