import type { RingConnection } from '../connection/connection.js'
import type { Session } from '../setup/handshake.js'

interface Latest {
  epoch: number
  connection: RingConnection | undefined
}

/** Sessions without a connection whose epoch is remembered; the one that connected longest ago goes first. */
const REMEMBERED = 4096

/**
 * The fence between the connections of one session: of them only the one of the highest epoch is served, and
 * nothing of an older one is delivered once it is.
 */
export class Sessions {
  /** in the order of their latest connection */
  readonly #latest = new Map<string, Latest>()
  #connected = 0

  /** Why a connection of that session cannot be taken, or undefined when it can. */
  refusal({ id, epoch }: Session): string | undefined {
    const latest = this.#latest.get(id)
    return latest === undefined || epoch > latest.epoch
      ? undefined
      : `ESTALE: epoch ${epoch} is not above ${latest.epoch}`
  }

  /** Whether a connection of that session takes the place of one that is served. */
  replaces({ id }: Session): boolean {
    return this.#latest.get(id)?.connection !== undefined
  }

  /**
   * Makes `epoch` the session's latest, at once; resolves when nothing of older connections is delivered
   * any more.
   */
  async enter({ id, epoch }: Session): Promise<void> {
    const latest = this.#latest.get(id) ?? { epoch, connection: undefined }
    latest.epoch = epoch
    this.#latest.delete(id)
    this.#latest.set(id, latest)
    this.#forget()
    // While this waits, one of an epoch between may be opened.
    while (latest.connection !== undefined) await latest.connection.abandon(latest.epoch)
  }

  /** Serves `connection` as its session's, unless a higher epoch has entered meanwhile: then false. */
  open(connection: RingConnection, { id, epoch }: Session): boolean {
    const latest = this.#latest.get(id)
    if (latest === undefined || latest.epoch !== epoch) return false
    latest.connection = connection
    this.#connected++
    void connection.closed.then(() => {
      if (latest.connection === connection) latest.connection = undefined
      this.#connected--
    })
    return true
  }

  #forget(): void {
    if (this.#latest.size - this.#connected <= REMEMBERED) return
    for (const [id, { connection }] of this.#latest)
      if (connection === undefined) {
        this.#latest.delete(id)
        return
      }
  }
}
