// State folders of exports of older versions, as their processes left them, are taken over; those of devices are in
// packages/nbd-client/test/upgrade/older-state.test.ts. Of each one in fixtures/ the name says the commit: served-9d3311a is
// of `nbd-client serve --size 2M --replicas 1 --backup --ack backup --state`, killed after 1 MiB of 17 and 64 KiB of 34 were
// written; its server is gone.
import { readFileSync, statSync, utimesSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { unpackState } from '../../../packages/nbd-client/test/helpers/older-state.js'
import { complete, NBD_CLIENT, Program, temporaryFolder, until } from '../helpers/processes.js'

const MIB = 2 ** 20
const SIZE = 2 * MIB
/** bytes of a backup's file behind the volume's, since 2026-11 */
const HEADER = 4096

function serving(folder: string): Program {
  return new Program(
    NBD_CLIENT,
    [
      ...['serve', '--server', 'iwarp://127.0.0.1:17471', '--size', '2M', '--connections', '2'],
      ...['--unix', join(folder, 'nbd.sock'), '--state', join(folder, 'state')],
      ...['--backup', join(folder, 'backup'), '--ack', 'backup'],
    ],
    { RDMAKIT_RUN: folder },
  )
}

async function expectContents(program: Program): Promise<void> {
  const [, uri] = await program.prints(/^ready (\S+)$/m)
  const reads = [`read -P 17 0 ${MIB}`, `read -P 34 ${MIB} 64k`, `read -P 0 ${MIB + 65_536} ${MIB - 65_536}`]
  const said = await complete('qemu-io', [
    '-f',
    'raw',
    ...reads.flatMap((read) => ['-c', read]),
    uri as string,
  ])
  expect(said).not.toMatch(/fail|error/i)
}

const volumeOf = (folder: string) => JSON.parse(readFileSync(join(folder, 'state/volume.json'), 'utf8'))

it('an export that an older version served is served again from its backup, and is of the current version then', async () => {
  using folder = temporaryFolder()
  unpackState('served-9d3311a', folder.path)
  // Since this machine was started, which may have been after the fixture was made.
  utimesSync(join(folder.path, 'state/volume.json'), new Date(), new Date())
  expect(volumeOf(folder.path)).not.toHaveProperty('boot')
  for (let start = 0; start < 2; start++) {
    // Nothing is written to the backup that this version could not read before the volume is served.
    expect(statSync(join(folder.path, 'backup')).size).toBe(start === 0 ? SIZE : SIZE + HEADER)
    await using program = serving(folder.path)
    await expectContents(program)
    await until(
      () => statSync(join(folder.path, 'backup')).size,
      (size) => size === SIZE + HEADER,
    )
    expect(program.stderr).not.toContain('warning')
    expect(volumeOf(folder.path).boot).toBe(readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim())
    await program.stop('SIGKILL')
  }
})

it('one that it served before the machine was started again is refused, and stays as it is', async () => {
  using folder = temporaryFolder()
  unpackState('served-9d3311a', folder.path)
  const before = JSON.stringify(volumeOf(folder.path))
  utimesSync(join(folder.path, 'state/volume.json'), 1_000_000_000, 1_000_000_000)
  await using refused = serving(folder.path)
  expect((await refused.ends()).status).toBe(78)
  expect(refused.stderr).toMatch(/from before this machine was rebooted/)
  expect(JSON.stringify(volumeOf(folder.path))).toBe(before)
  expect(statSync(join(folder.path, 'backup')).size).toBe(SIZE)
})
