import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { controlFault } from '../../../control-fault.js'
import { effort } from '../../../effort.js'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { ensureArrayWalk } from '../../machine/native.js'
import { rdmakitSwap } from '../../swap/remote-swap.js'
import { halfInMemory, pagesOut, untilPagesOut, walkArray } from '../../swap/swap.js'
import { lender } from '../lender.js'

/** Of the array. */
const mebibytes = Math.min(64, effort(40))

const KILLED = ['killed', 'SIGKILL', null] as const
const LAST_RESORT = ['ended by its last resort', 'SIGUSR2', 70] as const
/** The other two, a minute: of the same take-over, which does not know how the process before it ended. */
const besides = (end: typeof KILLED | typeof LAST_RESORT) =>
  process.env.RDMAKIT_TIER === 'soak' ? [end] : []

// The process that holds the kernel's swap is killed in the middle of it and started again, by the front page's command.
describe.each([
  { device: '/dev/nbd0', ends: [KILLED, ...besides(LAST_RESORT)] },
  { device: '/dev/ublkb0', ends: [LAST_RESORT, ...besides(KILLED)] },
])('remote swap on $device whose client is killed', ({ device, ends }) => {
  const shell = new LocalShell()
  let command: string[]
  let attached: RegExp
  const env = controlFault('timer')
  let server: RunningProcess
  let client: RunningProcess
  let program: string

  beforeAll(async () => {
    program = await ensureArrayWalk()
    const { uri, process } = await lender()
    server = process
    const { attach, attached: ready } = rdmakitSwap(uri, '', '256M', device)
    command = attach as string[]
    attached = ready
    client = shell.start(command, { env })
    await client.waitForLine(attached, 120_000)
  }, 300_000)

  afterAll(async () => {
    await client?.stop(120_000)
  }, 180_000)

  test.each(ends)(
    'a program that swaps ends with every byte right when it is %s',
    async (_, signal, status) => {
      const before = pagesOut()
      const restart = async () => {
        await untilPagesOut(before + 3_000)
        expect(await client.stop(15_000, signal)).toMatchObject({ status })
        const ended = Date.now()
        client = shell.start(command, { env })
        await client.waitForLine(attached, 120_000)
        return Date.now() - ended
      }
      const [walk, away] = await Promise.all([
        walkArray(shell, { program, ...halfInMemory(mebibytes) }),
        restart(),
      ])
      console.log(
        `remote swap, its client gone by ${signal} and back after ${away} ms: ${JSON.stringify(walk)}`,
      )
      expect(client.stderr).toContain(`taking over ${device}`)
      expect(walk.wrongPages).toBe(0)
      expect(walk.pagesOut).toBeGreaterThan(6_000)
      expect(walk.pagesIn).toBeGreaterThan(6_000)
    },
    300_000,
  )

  // Of nbd it takes 15 s more, and the decision is the same.
  if (device.startsWith('/dev/ublk') || process.env.RDMAKIT_TIER === 'soak')
    test('a successor that is stopped before it has the device takes it over, and ends it in order', async () => {
      await client.stop(15_000, 'SIGKILL')
      // It gives no session back until it goes on.
      server.signal('SIGSTOP')
      client = shell.start(command)
      try {
        await client.waitForLine(/taking over/, 60_000)
        client.signal('SIGTERM')
      } finally {
        server.signal('SIGCONT')
      }
      expect(await client.ended(120_000)).toMatchObject({ status: 0 })
      await shell.run(
        'test ! -e /sys/block/nbd0/pid && test ! -e /dev/ublkc0 && test -z "$(ls /run/rdmakit/state)"',
      )
    }, 180_000)
})
