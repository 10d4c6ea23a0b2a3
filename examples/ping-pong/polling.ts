// A program that polls: no thread takes completions for it, and no event wakes it.
import { setImmediate as turnOfTheLoop } from 'node:timers/promises'
import type { RingConnection, RingOptions, RingView } from '@rdmakit/ring-transport'

/** Looks without a message after which the event loop gets a turn: for timers, signals, other connections. */
const LOOKS = 20_000

/** All connections of the program are polled together. */
export const options: RingOptions = { poller: 'caller' }

/** Gives each message to `take`, until `done` or the end of the connection. */
export async function poll(
  connection: RingConnection,
  take: (message: RingView) => void,
  done: () => boolean = () => false,
): Promise<void> {
  while (connection.isOpen && !done()) {
    for (let looks = 0; looks < LOOKS && connection.isOpen && !done(); looks++)
      if (connection.drain(take) > 0) looks = 0
    await turnOfTheLoop()
  }
}
