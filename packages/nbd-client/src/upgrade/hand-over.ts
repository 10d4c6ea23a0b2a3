import { within } from '@rdmakit/verbs/internal'
import type { BlockEngine } from '../engine/block-engine.js'
import type { Volume } from '../engine/block-volume.js'
import { closeDescriptor } from '../kernel/kernel.js'
import type { StateFolder } from './state-folder.js'
import type { Successor } from './successor.js'

/** The connection of device and lanes, as far as it affects the progress of a hand-over. */
export interface Parting {
  /** Every lane has answered its requests, and is idle. */
  rested?(): void
  /** The lanes' threads have ended. */
  ended?(): void
  /** Whatever the hand-over came to. */
  over?(): Promise<void>
}

export interface HandOverOptions {
  readonly volume: Volume
  readonly folder: StateFolder
  readonly successor: Successor
  /** milliseconds in which every lane answers its requests */
  readonly answerTimeout: number
  readonly parting?: Parting | undefined
  /** milliseconds in which the successor serves when it has all that it needs; default {@link Successor}'s */
  readonly serveTimeout?: number | undefined
  /** Continues with the volume, in this process, after a successor that failed: by {@link Volume.takeOver}. */
  readonly retake: () => Promise<Volume>
}

export type HandOverOutcome =
  /** the successor serves; `pause`: milliseconds in which no process served */
  | { readonly over: true; readonly pause: number }
  /**
   * This process serves, with `volume`. `lost`: lanes that need another socket, for theirs was lost with the successor;
   * if it is empty, users noticed only a pause. If `volume` is another one, the queues of a device are not
   * served yet.
   */
  | {
      readonly over: false
      readonly pause: number
      readonly volume: Volume
      readonly lost: readonly number[]
      readonly reason: string
    }

/**
 * Hands a volume and its connections to `successor`. Their clients notice a pause. Then the old volume is
 * left, and this process has to end; or it continues itself. The kernel notices when the threads of a
 * device's queues have ended, which is before the successor has the volume.
 * @throws Error when the successor failed, and so did continuing here: the sessions linger, for the next
 * process
 */
export async function handOver(options: HandOverOptions): Promise<HandOverOutcome> {
  const { volume, folder, successor, parting, answerTimeout, serveTimeout, retake } = options
  const begun = performance.now()
  const pause = () => performance.now() - begun
  const { sockets, failure: unyielding } = await yieldLanes(volume, answerTimeout)
  if (unyielding !== undefined) {
    const lost = goOn(volume.engine, sockets)
    await successor.kill()
    return { over: false, pause: pause(), volume, lost, reason: unyielding.message }
  }
  let committed = false
  try {
    parting?.rested?.()
    // The sessions stay open until the successor resumes them: at no moment does their memory hang on a timer.
    await volume.quiesce()
    parting?.ended?.()
    await successor.give(folder.lock, sockets)
    committed = true
    await successor.commit(serveTimeout)
    return { over: true, pause: pause() }
  } catch (failure) {
    await successor.kill()
    const { message: reason } = failure as Error
    const again = await retake()
    // Requests that the successor read from a socket and did not answer are lost with it.
    const lost = committed ? [...sockets.keys()] : goOn(again.engine, sockets)
    return { over: false, pause: pause(), volume: again, lost, reason }
  } finally {
    for (const socket of sockets.values()) closeDescriptor(socket)
    // Here too its queue pairs are dead since they were resumed. An end that fails takes nothing with it.
    await volume.leave().catch(() => {})
  }
}

/**
 * Lets every lane answer its requests and give its socket away. `failure`: one of them did not, or not in
 * time; then all continue, even those that have just given theirs away.
 * @returns descriptors by lane, of those that served a connection
 */
async function yieldLanes({ engine, lanes }: Volume, timeout: number) {
  const sockets = new Map<number, number>()
  let failure: Error | undefined
  const yielded = lanes.map(async ({ index }) => {
    const idle = whenIdle(engine, index)
    const socket = await engine.yieldLane(index)
    if (socket === undefined) return idle.forget()
    await idle.reached
    if (failure === undefined) sockets.set(index, socket)
    else goOn(engine, new Map([[index, socket]]))
  })
  const tooLate = () => new Error(`lanes did not answer within ${timeout} ms`)
  try {
    await within(Promise.all(yielded), timeout, tooLate)
  } catch (reason) {
    failure = reason as Error
    for (const { index } of lanes) engine.resumeLane(index)
  }
  return { sockets, failure }
}

/** Gives lanes their sockets back, and empties `sockets`. @returns those that did not take theirs */
function goOn(engine: BlockEngine, sockets: Map<number, number>): number[] {
  const refused: number[] = []
  for (const [lane, socket] of sockets) {
    try {
      engine.attachSocket(lane, socket)
    } catch {
      refused.push(lane)
    } finally {
      closeDescriptor(socket)
    }
  }
  sockets.clear()
  return refused
}

/** A lane that has given its socket away takes another one when it is idle. */
function whenIdle(engine: BlockEngine, index: number): { reached: Promise<void>; forget: () => void } {
  let forget = () => {}
  const reached = new Promise<void>((resolve) => {
    forget = engine.on('laneIdle', ({ lane }) => {
      if (lane !== index) return
      forget()
      resolve()
    })
  })
  return { reached, forget: () => void forget() }
}
