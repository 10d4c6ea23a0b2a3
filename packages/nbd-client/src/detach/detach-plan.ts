import { EXIT, ExitError } from '@rdmakit/operator-kit'
import { describeUses, type Use } from '../kernel/device-uses.js'

/** All that it hangs on how a device is detached. */
export interface DetachFacts {
  readonly path: string
  /**
   * `gone`: the kernel has no such device; `left`: of ublk, one without a disk and without a process that serves it
   */
  readonly device: 'there' | 'left' | 'gone'
  /** some nbd-client has made it */
  readonly ours: boolean
  /** process that has it, and answers */
  readonly owner: number | undefined
  /** nbd-clients that do not answer, each of which may have it */
  readonly silent: readonly number[]
  /** but for its own swap */
  readonly uses: readonly Use[]
  /** KiB that are swapped out to it; undefined: it is no swap */
  readonly swapped: number | undefined
  /** whatever is lost */
  readonly force: boolean
}

/**
 * `ask`: its process ends it; `end`: it is unused, so it is ended here; `pull`: it is in use, and its users
 * lose it; `remove`: only a remainder is there.
 */
export type DetachPlan = 'ask' | 'end' | 'pull' | 'remove'

/** @throws ExitError: it is not detached, and why */
export function planDetach(facts: DetachFacts): DetachPlan {
  const { path, device, owner, silent, uses, swapped, force } = facts
  const force_ = `"nbd-client detach --force ${path}"`
  const refuse = (why: string, status: number = EXIT.taken) => {
    if (!force) throw new ExitError(`${path} ${why}`, status)
  }
  if (device === 'gone')
    throw new ExitError(`${path} is not attached; "nbd-client status" lists what is`, EXIT.failed)
  if (!facts.ours) refuse(`belongs to another program, which should end it; ${force_} ends it anyway`)
  if (device === 'left') return 'remove'
  if (uses.length > 0) refuse(`is in use: ${describeUses(uses)}; end that first, or ${force_}`)
  if (owner !== undefined) return 'ask'
  if (silent.length > 0)
    refuse(
      `is not detached: ${listed(silent)} not answer, and may hold it; if it hangs for good, ${force_}`,
      EXIT.unavailable,
    )
  if ((swapped ?? 0) > 0)
    refuse(
      `has pages that only its next nbd-client can bring back; repeat the command that attached it, then detach it; if the pages are lost, ${force_} gives them up`,
    )
  return uses.length > 0 || silent.length > 0 || (swapped ?? 0) > 0 ? 'pull' : 'end'
}

/** `process 12 does`, `processes 12 and 13 do`. */
function listed(pids: readonly number[]): string {
  const [first, ...others] = pids
  return others.length === 0 ? `process ${first} does` : `processes ${pids.join(' and ')} do`
}
