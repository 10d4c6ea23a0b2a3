import type { ConnectionId } from '@rdmakit/verbs'
import type { ControlConnection } from '../protocol/control-connection.js'
import { SwapServerError } from './server-replies.js'

/** The client's end of a control connection. */
export interface ClientControlConnection extends ControlConnection {
  /** Keeps the event loop alive until it has ended, as it does at first. */
  ref(): unknown
  /** No longer keeps the event loop alive. */
  unref(): unknown
}

/** The connections of a client's session: all of them keep the event loop alive, or none. */
export class SessionConnections {
  readonly control: ClientControlConnection
  readonly #data = new Set<ConnectionId>()
  readonly #cancelled = new AbortController()
  #referenced = true

  constructor(control: ClientControlConnection) {
    this.control = control
  }

  /** Whether they keep the event loop alive until they have ended; at first they do. */
  set referenced(referenced: boolean) {
    this.#referenced = referenced
    for (const one of [this.control, ...this.#data])
      if (referenced) one.ref()
      else one.unref()
  }

  /** For data connections that are being made: aborts when there are to be no more. */
  get cancelled(): AbortSignal {
    return this.#cancelled.signal
  }

  /** Ends data connections that are being made, and lets none be made any more. */
  cancel(): void {
    this.#cancelled.abort(new SwapServerError('ECANCELED', 'this side has ended the session'))
  }

  /** Takes a data connection that is established. @param ended called when it has ended, with the reason if there is one */
  add(id: ConnectionId, ended: (reason: Error | undefined) => void): void {
    this.#data.add(id)
    if (!this.#referenced) id.unref()
    void id.disconnected.then((reason) => {
      this.#data.delete(id)
      id.close()
      ended(reason)
    })
  }

  /** Ends all of them. Resolves when the control connection has ended. */
  async end(): Promise<void> {
    for (const id of [...this.#data]) {
      try {
        id.disconnect()
      } catch {
        // Its device is lost: there is nothing to disconnect.
      }
      id.close()
    }
    await this.control.close()
  }
}
