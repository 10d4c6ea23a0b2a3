import {
  disableIdleGc,
  integerInRange,
  makeStdioNonBlocking,
  type ProgramCommand,
} from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import { Option } from 'commander'
import { chosenDevice } from '../attach/attach-options.js'
import type { Front } from '../kernel/device-name.js'
import { installLastResort } from '../report/last-resort.js'
import { stopSignal } from './stop-signal.js'
import { type VolumeFlags, volumeOf, withVolume } from './volume-flags.js'

interface AttachFlags {
  /** false: --no-state */
  state?: string | false
  front: Front
  device?: string
  pin: boolean
  swap: boolean
  swapPriority?: number
}

/** @param typed how the program is called */
export function addAttach(program: ProgramCommand, typed: string): void {
  withVolume(
    program
      .command('attach')
      .description(
        'Attach the volume as /dev/nbdN or /dev/ublkbN. Prints "attached /dev/nbdN" and stays; SIGTERM detaches.',
      )
      .optionsGroup('The device:')
      .option(
        '--swap',
        'use the device as swap: locks memory, runs mkswap and swapon, keeps state; SIGTERM runs swapoff first',
        false,
      )
      .option('--swap-priority <n>', 'swap priority; the highest is used first', integerInRange(0, 32767))
      .addOption(
        new Option(
          '--front <driver>',
          'kernel driver of the device: ublk uses less CPU per page, nbd is available on every system',
        )
          .choices(['nbd', 'ublk'])
          .default('nbd'),
      )
      .option('--device <device>', 'device to use; default: the first free one')
      .option(
        '--connections <n>',
        'sockets between the kernel and this process, or ublk queues',
        integerInRange(1, 64),
        2,
      )
      .option(
        '--no-pin',
        'let the serving threads run on any processor, not only on those that send them requests',
      ),
  )
    .optionsGroup('When something fails:')
    .option('--no-state', 'with --swap: keep no state; the swap is lost with the process')
    .optionsGroup('Options:')
    .withNotes({
      notes: [
        'With --swap or --state, the device and its pages outlive a process that is killed or fails: the same command takes them over. Without --state, the state is kept in a folder of the run directory until the device is detached.',
        'Needs root and the nbd kernel module, or with --front ublk, ublk_drv.',
      ],
      examples: [
        `${typed} attach --server rdma://10.0.0.1:7471 --size 4G --swap`,
        `${typed} attach --server rdma://10.0.0.1:7471,iwarp://10.0.0.1:7472 --size 4G --device /dev/nbd3`,
        `${typed} attach --server rdma://10.0.0.1:7471 --size 4G --swap --state /run/rdmakit/swap0`,
      ],
    })
    .action(async ({ state, ...options }: Omit<VolumeFlags, 'state'> & AttachFlags) => {
      const volume = { ...volumeOf(options), state }
      makeStdioNonBlocking()
      installLastResort()
      chosenDevice(options)
      if (options.swapPriority !== undefined && !options.swap)
        throw new UsageError('--swap-priority is of swap: it needs --swap')
      const { startSwapFree } = await import('../attach/start-swap-free.js')
      // Also without --swap: the operator may make the device swap.
      const swapFree = await startSwapFree()
      // The first life ends above, without having loaded it.
      const { attach } = await import('../attach/attach.js')
      disableIdleGc()
      const { front, device, pin, swap, swapPriority } = options
      process.exitCode = await attach({
        ...volume,
        front,
        device,
        pin,
        swap,
        swapPriority,
        swapFree,
        signal: stopSignal(),
      })
    })
}
