import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { effort } from '../../../effort.js'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { until } from '../../base/until.js'
import { ensureArrayWalk } from '../../machine/native.js'
import { rdmakitSwap } from '../../swap/remote-swap.js'
import { halfInMemory, pagesOut, untilPagesOut, walkArray } from '../../swap/swap.js'
import { lender } from '../lender.js'

const mebibyte = 1024 * 1024
const UPGRADES = 2
/** Of the array. */
const mebibytes = Math.min(64, effort(48))
const program = ['node', 'packages/nbd-client/dist/cli.js']

// The kernel's swap goes from process to process while it is used.
describe.each(['/dev/nbd0', '/dev/ublkb0'])('remote swap on %s whose client is upgraded', (device) => {
  const shell = new LocalShell()
  // The successor finds the folder by itself, or is told it.
  const state = device.startsWith('/dev/nbd') ? [] : ['--state', '/run/rdmakit/upgrade-swap']
  let command: string[]
  let client: RunningProcess
  let walker: string

  /** What the kernel had to say of the device so far. */
  const kernelLines = async () =>
    (await shell.run(`dmesg | grep -c "block ${device.slice(5)}" || true`)).trim()

  beforeAll(async () => {
    walker = await ensureArrayWalk()
    const { uri } = await lender()
    const { attach, attached } = rdmakitSwap(uri, '', '256M', device)
    command = [...(attach as string[]), ...state]
    client = shell.start(command)
    await client.waitForLine(attached, 120_000)
  }, 300_000)

  afterAll(async () => {
    await shell.exec([...program, 'detach', device], { deadlineMs: 120_000 })
    await client?.stop()
  }, 180_000)

  test('a program that swaps ends with every byte right, after pauses', async () => {
    const before = pagesOut()
    const told = await kernelLines()
    const pauses: number[] = []
    const upgrades = async () => {
      for (let upgrade = 1; upgrade <= UPGRADES; upgrade++) {
        await untilPagesOut(before + upgrade * 2_000)
        const said = await shell.run([...program, 'upgrade', device], { deadlineMs: 120_000 })
        pauses.push(
          Number(/^upgraded \S+: process \d+ has taken over, requests waited (\d+) ms$/m.exec(said)?.[1]),
        )
      }
    }
    const [walk] = await Promise.all([
      walkArray(shell, { program: walker, ...halfInMemory(mebibytes) }),
      upgrades(),
    ])
    console.log(
      `remote swap on ${device}, upgraded with pauses of ${pauses.join(', ')} ms: ${JSON.stringify(walk)}`,
    )
    expect(walk.wrongPages).toBe(0)
    expect(walk.pagesOut).toBeGreaterThan(6_000)
    expect(walk.pagesIn).toBeGreaterThan(6_000)
    expect(pauses.every((pause) => pause > 0)).toBe(true)
    // No socket was lost or replaced, and no request waited longer than the kernel allows (--timeout + 2 s).
    expect(await kernelLines()).toBe(told)
  }, 300_000)

  // Of ublk, ublk-recovery.test.ts has it: successors that die in each place.
  if (device.startsWith('/dev/nbd') || process.env.RDMAKIT_TIER === 'soak')
    test('a successor that fails leaves the old process serving', async () => {
      const wrong = [...command, '--replicas', '2']
      const result = await shell.exec([...program, 'upgrade', device, '--', ...wrong], {
        deadlineMs: 120_000,
      })
      expect(result.status).toBe(1)
      const walk = await walkArray(shell, {
        program: walker,
        bytes: 16 * mebibyte,
        throttleBytes: 12 * mebibyte,
      })
      expect(walk.wrongPages).toBe(0)
    }, 300_000)

  // Of ublk it takes 40 s more, of the same decisions.
  if (device.startsWith('/dev/nbd') || process.env.RDMAKIT_TIER === 'soak')
    test('a process that is stopped while it hands over ends after its successor has ended the device', async () => {
      const clients = JSON.parse(await shell.run([...program, 'status', '--json']))
      const { pid } = clients.find(({ target }: { target: string }) => target === device)
      const handOvers = () => client.stderr.split('starting the successor').length
      const before = handOvers()
      const upgrade = shell.start([...program, 'upgrade', device])
      await until('a successor is started', 60_000, () => handOvers() > before)
      // A service's manager kills what is left when this process has ended.
      const gone = device.startsWith('/dev/nbd') ? '/sys/block/nbd0/pid' : '/dev/ublkc0'
      await shell.run(
        `kill ${pid} && while test -e /proc/${pid}/exe; do sleep 0.05; done
       test ! -e ${gone} && test -z "$(find /run/rdmakit -name volume.json)"`,
        { deadlineMs: 120_000 },
      )
      await upgrade.ended(60_000)
    }, 300_000)
})
