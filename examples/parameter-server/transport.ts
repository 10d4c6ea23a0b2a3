/** What a worker has of the server. */
export interface ToServer {
  /**
   * Sends a slice of gradients, which `fill` writes where the transport sends it from. A promise when the next
   * one has to wait.
   */
  push(slice: number, fill: (gradient: Float32Array) => void): Promise<void> | undefined
  close(): Promise<void>
}

/** What the server has of a worker. */
export interface ToWorker {
  /** Sends new weights of a slice. They stay as they are until every worker has pushed that slice again. */
  pull(slice: number, weights: Float32Array): void
}

/** What a transport tells the server. */
export interface ServerEvents {
  joined(worker: ToWorker): void
  /** The gradients are good until this returns. */
  pushed(slice: number, gradient: Float32Array): void
  left(worker: ToWorker): void
}

export interface Transport {
  /** @returns where it listens */
  listen(uri: string, events: ServerEvents): Promise<{ uri: string; close(): Promise<void> }>
  /**
   * @param weights where what is pulled goes
   * @param pulled called for each slice that is there
   * @param lost called when the server is gone
   */
  connect(
    uri: string,
    weights: Float32Array,
    pulled: (slice: number) => void,
    lost: (reason: Error) => void,
  ): Promise<ToServer>
}
