// Which of several processes that have one state folder, or copies of it, has the volume's sessions
// (docs/page-service/fencing.md). All servers decide by this alone, so they decide alike.
import { randomBytes } from 'node:crypto'
import type { rdmakit } from '../../generated/control.js'

/** Bytes of {@link TakeOver.instance}. */
export const INSTANCE_BYTES = 8

/** Which take-over of its volume a process is. */
export interface TakeOver {
  /** 0: of a client that knows no numbers, or keeps no state; raised by each process that takes the volume over */
  readonly number: number
  /** drawn by each of them, so that two that raise the same number differ */
  readonly instance: Uint8Array
}

export const NO_TAKE_OVER: TakeOver = { number: 0, instance: new Uint8Array(INSTANCE_BYTES) }

/** The take-over that comes after `before`. */
export function nextTakeOver(
  before: TakeOver,
  instance = Uint8Array.from(randomBytes(INSTANCE_BYTES)),
): TakeOver {
  return { number: before.number + 1, instance }
}

/** A total order: below 0 when `one` has to leave its sessions to `other`, 0 when they are the same process. */
export function compareTakeOvers(one: TakeOver, other: TakeOver): number {
  return one.number - other.number || Buffer.compare(one.instance, other.instance)
}

/**
 * Parses a peer's number; a missing one is {@link NO_TAKE_OVER}.
 * @returns undefined: it is invalid
 */
export function takeOverOf(
  message: rdmakit.swap.v1.TakeOver.$Properties | null | undefined,
): TakeOver | undefined {
  if (message == null) return NO_TAKE_OVER
  const number = Number(message.number ?? 0)
  const instance = message.instance ?? new Uint8Array()
  if (!Number.isSafeInteger(number) || number < 0) return undefined
  if (number === 0) return NO_TAKE_OVER
  // A copy: the decoded value is a view of the request.
  return instance.length === INSTANCE_BYTES ? { number, instance: Uint8Array.from(instance) } : undefined
}

/** The verdict on a process that names a session. */
export type Claim =
  /** it has it already, or is the next one: it gets the session, whose number is its own from now on */
  | 'granted'
  /** a process has it, and the request was only for one that no process has */
  | 'attended'
  /** another process took the volume over behind it */
  | 'fenced'

/** @param unattended it wants the session only if no process has it */
export function judgeClaim(
  session: { readonly takeOver: TakeOver; readonly lingering: boolean },
  offered: TakeOver,
  unattended: boolean,
): Claim {
  if (compareTakeOvers(offered, session.takeOver) < 0) return 'fenced'
  return unattended && !session.lingering ? 'attended' : 'granted'
}
