import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import { say } from '../report/log.js'
import { inheritedState, openOwnState } from '../upgrade/default-state.js'
import { Predecessor } from '../upgrade/predecessor.js'
import { StateFolder } from '../upgrade/state-folder.js'
import type { AttachOptions } from './attach-options.js'
import { inheritDevice } from './inherit-device.js'
import { attachKept } from './kept-device.js'
import { attachNew } from './new-device.js'

/**
 * Attaches remote memory as a kernel block device, as swap if asked, until `signal` aborts. With `state`, a device
 * that an earlier process left there is taken over, or handed over by the one that starts this one for that.
 * @returns the process's exit status
 */
export async function attach(options: AttachOptions): Promise<number> {
  checkRoot()
  if (options.swap && options.thin)
    say('warning: swap on a thin volume: a page that is swapped out is lost when no server has memory left')
  const predecessor = Predecessor.find()
  if (!keepsState(options)) {
    if (predecessor !== undefined) throw new UsageError('only a device with --state can be handed over')
    return await attachNew(options, undefined)
  }
  if (predecessor !== undefined)
    return await inheritDevice(
      options,
      options.state || inheritedState(options, predecessor.state),
      predecessor,
    )
  return await attachKept(options, options.state ? StateFolder.open(options.state) : openOwnState(options))
}

/** @throws UsageError: answered WRITEs would be lost */
function keepsState({ state, swap, acknowledge }: AttachOptions): boolean {
  if (state === false || (state === undefined && !swap)) return false
  if (acknowledge === 'one')
    throw new UsageError(
      state === undefined
        ? '--swap keeps state, and with --ack one an answered write may be lost with the process; add --no-state to lose the swap with it'
        : '--state needs --ack all or --ack backup: with --ack one an answered write may be lost with the process',
    )
  return true
}

function checkRoot(): void {
  if (process.geteuid?.() !== 0)
    throw new ExitError(
      'attach must be run as root: it makes a block device; for an export without root use "nbd-client serve"',
      EXIT.forbidden,
    )
}
