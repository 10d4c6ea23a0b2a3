import type { BlockEngine } from './engine.js'
import { closeDescriptor } from './kernel.js'
import type { StateFolder } from './state-folder.js'
import type { Successor } from './successor.js'
import type { Volume } from './volume.js'

export interface HandOverOptions {
  readonly volume: Volume
  readonly folder: StateFolder
  readonly successor: Successor
  /** milliseconds in which every lane answers what it has */
  readonly answerTimeout: number
  /** Goes on with the volume, in this process, after a successor that failed: by {@link Volume.takeOver}. */
  readonly retake: () => Promise<Volume>
}

export type HandOverOutcome =
  /** the successor serves; `pause`: milliseconds in which nobody did */
  | { readonly over: true; readonly pause: number }
  /**
   * This process serves, with `volume`. `sockets`: `kept`, nobody noticed more than a pause; `dead`: they were lost with
   * the successor, and its lanes need others.
   */
  | {
      readonly over: false
      readonly pause: number
      readonly volume: Volume
      readonly sockets: 'kept' | 'dead'
      readonly reason: string
    }

/**
 * Hands a volume and its connections to `successor`. Their clients notice a pause. The old volume is left then,
 * and this process has to end; or it goes on itself.
 * @throws Error when the successor failed, and going on here as well: the sessions linger, for the next process
 */
export async function handOver(options: HandOverOptions): Promise<HandOverOutcome> {
  const { volume, folder, successor, answerTimeout, retake } = options
  const begun = performance.now()
  const pause = () => performance.now() - begun
  let sockets: ReadonlyMap<number, number>
  try {
    sockets = await yieldLanes(volume, answerTimeout)
  } catch (failure) {
    await successor.kill()
    return { over: false, pause: pause(), volume, sockets: 'kept', reason: (failure as Error).message }
  }
  let committed = false
  try {
    // The sessions stay open until the successor resumes them: at no moment does their memory hang on a timer.
    await volume.quiesce()
    await successor.give(folder.lock, sockets)
    committed = true
    await successor.commit()
    return { over: true, pause: pause() }
  } catch (failure) {
    await successor.kill()
    const { message: reason } = failure as Error
    const again = await retake()
    // What the successor read from a socket and did not answer is lost with it.
    if (!committed) for (const [lane, socket] of sockets) again.engine.attachSocket(lane, socket)
    return { over: false, pause: pause(), volume: again, sockets: committed ? 'dead' : 'kept', reason }
  } finally {
    for (const socket of sockets.values()) closeDescriptor(socket)
    // Here too its queue pairs are dead since they were resumed. An end that fails takes nothing with it.
    await volume.leave().catch(() => {})
  }
}

/**
 * Lets every lane answer what it has and give its socket away. When one of them does not in time, all go on.
 * @returns descriptors by lane, of those that served a connection
 */
async function yieldLanes({ engine, lanes }: Volume, timeout: number): Promise<Map<number, number>> {
  const sockets = new Map<number, number>()
  let late = false
  const yielded = lanes.map(async ({ index }) => {
    const idle = whenIdle(engine, index)
    const socket = await engine.yieldLane(index)
    if (socket === undefined) return idle.forget()
    await idle.reached
    if (late) goOn(engine, index, socket)
    else sockets.set(index, socket)
  })
  let timer: NodeJS.Timeout | undefined
  const tooLate = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`lanes did not answer within ${timeout} ms`)), timeout)
  })
  try {
    await Promise.race([Promise.all(yielded), tooLate])
    return sockets
  } catch (failure) {
    late = true
    // Those that are not done yet go on when they are.
    for (const each of yielded) each.catch(() => {})
    for (const [lane, socket] of sockets) goOn(engine, lane, socket)
    throw failure
  } finally {
    clearTimeout(timer)
  }
}

function goOn(engine: BlockEngine, lane: number, socket: number): void {
  try {
    engine.attachSocket(lane, socket)
  } finally {
    closeDescriptor(socket)
  }
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
