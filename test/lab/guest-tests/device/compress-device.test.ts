import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { lender } from '../lender.js'

const mebibyte = 1024 * 1024
const page = 4096
const bytes = 2 * mebibyte

// Pages that are compressed on the wire, under the kernel's block device.
describe('nbd-client attach --compress', () => {
  const shell = new LocalShell()
  const folder = mkdtempSync(join(tmpdir(), 'compress-device-'))
  const device = '/dev/nbd2'
  const program = ['node', 'packages/nbd-client/dist/cli.js']
  let attach: string[]
  let client: RunningProcess

  const text = (of: number) => Buffer.alloc(page, `page ${of} of a text; `)
  /** Every other run of 8 pages does not get smaller, and of the others every fifth page. */
  const mixed = (from: number) =>
    Buffer.concat(
      Array.from({ length: bytes / page }, (_, at) =>
        at % 16 < 8 || at % 5 === 0 ? randomBytes(page) : text(from + at),
      ),
    )
  const contents = [
    ['text', Buffer.concat(Array.from({ length: bytes / page }, (_, at) => text(at)))],
    ['random', randomBytes(bytes)],
    ['mixed', mixed(0)],
    ['rewritten', mixed(5000)],
  ] as const

  /** Past the kernel's cache, in requests of many pages and of one. */
  const direct = (name: string, at: number, block: number) =>
    `dd if=${folder}/${name} of=${device} bs=${block} seek=${(at * bytes) / block} oflag=direct status=none`
  const compare = (...names: string[]) =>
    shell.run(
      names
        .map(
          (name, at) =>
            `dd if=${device} bs=1M skip=${at * 2} count=2 iflag=direct status=none | cmp - ${folder}/${name}`,
        )
        .join(' && '),
    )
  beforeAll(async () => {
    for (const [name, data] of contents) writeFileSync(join(folder, name), data)
    const { uri } = await lender()
    attach = [
      ...program,
      ...['attach', '--server', uri, '--size', '8M'],
      ...['--device', device, '--compress', 'lz4-always', '--state', join(folder, 'state'), '--timeout', '1'],
    ]
    client = shell.start(attach)
    await client.waitForLine(/^attached /, 60_000)
  }, 150_000)

  afterAll(async () => {
    await client?.stop()
    rmSync(folder, { recursive: true })
  }, 150_000)

  test('gives back text, random bytes and both', async () => {
    await shell.run(`${direct('text', 0, mebibyte)} && ${direct('random', 1, mebibyte)}`)
    await shell.run(`${direct('mixed', 2, 32 * page)} && ${direct('text', 3, page)}`)
    await compare('text', 'random', 'mixed', 'text')
    const mixedText = Array.from({ length: bytes / page }, (_, at) => at % 16 >= 8 && at % 5 !== 0)
    const [{ statistics }] = JSON.parse(await shell.run([...program, 'status', '--json']))
    const sum = (name: string) =>
      statistics.lanes.reduce((all: number, lane: Record<string, number>) => all + Number(lane[name]), 0)
    expect(sum('pagesCompressed')).toBe((2 * bytes) / page + mixedText.filter(Boolean).length)
    expect(sum('pagesWrong')).toBe(0)
  }, 150_000)

  test('and again after the client was killed in the middle of writes', async () => {
    const writing = shell.run(direct('rewritten', 3, 2 * page))
    await client.stop(15_000, 'SIGKILL')
    client = shell.start(attach)
    await client.waitForLine(/^attached /, 60_000)
    expect(client.stderr).toMatch(/taking over \/dev\/nbd2/)
    await writing
    await compare('text', 'random', 'mixed', 'rewritten')
    await shell.run(direct('rewritten', 0, mebibyte))
    await compare('rewritten', 'random', 'mixed', 'rewritten')
    expect(client.stderr).not.toMatch(/was wrong/)
  }, 150_000)
})
